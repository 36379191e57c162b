"""Who is next in a pool: tiers by urgency with a floor share each, weighted token fairness between a tier's tenants,
arrival within a tenant.

Fairness between tenants is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models"
(OSDI 2024): the tenant with the smallest counter is next; a counter grows by the tokens served, output weighted, over
the plan's weight; one who comes back from having nothing waiting is lifted to where the others are, so that nobody
saves up. Unlike there, the output is charged at the grant by what the tenant's requests make on average, and corrected
as it becomes known; what is charged and not served yet lifts nobody, else who comes second to an idle pool would never
get level. A tier has counters of its own: what a tenant runs as batch does not make it wait as interactive.

Requests that wait are kept by class (which free slots they may use), so that one which cannot use the free slot is
passed over at once, with all that are like it. Every operation is O(log waiting), and O(classes) for a choice.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from inference.policy.brain_tunables import QueueTunables
from inference.policy.decisions import Scope, ScopeKind, Tier
from inference.policy.entry import Entry, LineClass
from inference.policy.tenant_lines import Account, TenantLine
from inference.policy.tier_turns import TIERS, TierTurns


class Place(NamedTuple):
    """Where one stands: 1 is the next. An estimate: it holds while nobody comes."""

    position: int
    prefill_tokens_ahead: int


@dataclass(slots=True, eq=False)
class _ClassLines:
    heaps: tuple[list[tuple[float, int, TenantLine]], ...] = field(default_factory=lambda: ([], [], []))
    lines: dict[tuple[str, Tier], TenantLine] = field(default_factory=dict)


class FairQueue:
    def __init__(self, tunables: QueueTunables) -> None:
        self.waiting = [0, 0, 0]
        """How many wait in each tier."""
        self.num_waiting = 0
        self._tunables = tunables
        self._turns = TierTurns(tunables)
        self._accounts: dict[tuple[str, Tier], Account] = {}
        self._classes: dict[LineClass, _ClassLines] = {}
        self._virtual_time = [0.0, 0.0, 0.0]  # a tier's: where those that come are lifted to
        self._last: list[tuple[Account, float] | None] = [None, None, None]  # who was let through, and his counter
        self._tokens = [0, 0, 0]  # prompt tokens that wait, by tier
        self._weights = [0.0, 0.0, 0.0]  # of the tenants that wait, by tier
        self._blocked_tenants: set[str] = set()
        self._blocked_keys: set[tuple[str, str]] = set()  # tenant, key
        self._num_excluding = 0  # classes of those that have tried a replica
        self._next_number = 0

    # Coming and leaving

    def add(self, entry: Entry, now_s: float) -> None:
        """Its account is set."""
        tier, tenant, account = entry.tier, entry.ask.tenant, entry.account
        assert account is not None
        if account.waiting == 0:
            self._lift(account)
            self._weights[tier] += account.weight
        if self.waiting[tier] == 0:
            self._turns.begin_waiting(tier, now_s)
        self.waiting[tier] += 1
        self.num_waiting += 1
        self._tokens[tier] += entry.ask.work_tokens
        account.waiting += 1
        account.waiting_tokens += entry.ask.work_tokens
        line = self._line(account, entry.line_class)
        line.add(entry, is_key_blocked=(tenant, entry.ask.key) in self._blocked_keys)
        self._activate(line)

    def remove(self, entry: Entry) -> None:
        line = entry.line
        assert line is not None, "only who waits can leave"
        account, tier = line.account, entry.tier
        line.remove(entry)
        self.waiting[tier] -= 1
        self.num_waiting -= 1
        self._tokens[tier] -= entry.ask.work_tokens
        account.waiting -= 1
        account.waiting_tokens -= entry.ask.work_tokens
        if account.waiting == 0:
            self._weights[tier] = self._weights[tier] - account.weight if self.waiting[tier] else 0.0
        if line.size == 0:
            self._drop(line)

    def account(self, tenant: str, tier: Tier, weight: float) -> Account:
        found = self._accounts.get((tenant, tier))
        if found is None:
            found = Account(tenant, tier, weight, self._tunables.assumed_completion_tokens)
            self._accounts[(tenant, tier)] = found
        return found

    def set_weight(self, tenant: str, weight: float) -> None:
        """What was charged stays; from now on the new weight holds."""
        for tier in TIERS:
            account = self._accounts.get((tenant, tier))
            if account is not None:
                if account.waiting:
                    self._weights[tier] += weight - account.weight
                account.weight = weight

    # Who is next

    def next(
        self, barred: Collection[LineClass], now_s: float, *, bars_long: bool = False, bars_plain: bool = False
    ) -> Entry | None:
        """The next that is neither blocked by a limit nor of a class that is barred. It stays in the queue.

        `bars_long`: all long prompts are barred; `bars_plain`: all that have not tried any replica.
        """
        for tier in self._turns.in_order(self.waiting, now_s):
            if self.waiting[tier]:
                best: tuple[float, int, Entry] | None = None
                for line_class, lines in self._classes.items():
                    if line_class in barred or (bars_long and line_class[1]) or (bars_plain and not line_class[0]):
                        continue
                    found = self._first(lines.heaps[tier])
                    if found is not None and (best is None or found[:2] < best[:2]):
                        best = found
                if best is not None:
                    return best[2]
        return None

    def has_exclusions(self) -> bool:
        """Whether someone who waits has tried a replica."""
        return self._num_excluding > 0

    def classes(self) -> Iterator[tuple[LineClass, Entry]]:
        """Each class that waits, with one of those who do."""
        for line_class, lines in self._classes.items():
            for line in lines.lines.values():
                yield line_class, line.in_order()[0]
                break

    def of_class(self, line_class: LineClass) -> list[Entry]:
        lines = self._classes[line_class].lines.values()
        return [entry for line in lines for entry in line.in_order()]

    def entries(self) -> Iterator[Entry]:
        for line_class in self._classes:
            yield from self.of_class(line_class)

    # Blocked by a limit on what a tenant, a key or a tenant's model has at once

    def block(self, entry: Entry, scope: Scope) -> None:
        """`scope` is full: nobody of it is next until `wake`."""
        if scope.kind is ScopeKind.KEY:
            self._blocked_keys.add((entry.ask.tenant, entry.ask.key))
            for line in self._lines_of(entry.ask.tenant):
                line.block_key(entry.ask.key)
        else:
            self._blocked_tenants.add(entry.ask.tenant)

    def is_blocked(self, entry: Entry) -> bool:
        return entry.ask.tenant in self._blocked_tenants or (entry.ask.tenant, entry.ask.key) in self._blocked_keys

    def wake(self, tenant: str, scope: Scope) -> None:
        """A slot of the tenant's scope became free. What it could not use while it was full is not saved up."""
        if scope.kind is not ScopeKind.KEY:
            self._blocked_tenants.discard(tenant)
        elif (tenant, scope.id) in self._blocked_keys:
            self._blocked_keys.discard((tenant, scope.id))
            for line in self._lines_of(tenant):
                line.wake_key(scope.id)
        for line in self._lines_of(tenant):
            self._lift(line.account)
            self._activate(line)

    def wake_tenant(self, tenant: str) -> None:
        """Its limits have changed."""
        self.wake(tenant, Scope(ScopeKind.TENANT, tenant))
        for _, key in [blocked for blocked in self._blocked_keys if blocked[0] == tenant]:
            self.wake(tenant, Scope(ScopeKind.KEY, key))

    # What was served

    def let_through(self, entry: Entry, now_s: float) -> None:
        """Take it out, if it waited, and charge its tenant and tier. An entry that never waited has its account set."""
        account = entry.account
        assert account is not None
        if entry.line is not None:
            self.remove(entry)
        elif account.waiting == 0:
            self._lift(account)
        tier = entry.tier
        self._move_on(tier)
        self._last[tier] = account, account.counter
        made = entry.completion_tokens
        expected = made + min(account.mean_completion_tokens, float(entry.ask.max_tokens or account.mean_completion_tokens))
        before = entry.charged * account.weight
        tokens = self.service(entry.ask.work_tokens, entry.cached_tokens, expected)
        self.charge(entry, tokens, ahead=self._tunables.output_weight * (expected - made))
        self._turns.served(tier, max(0.0, tokens - before), self.waiting, now_s)

    def service(self, prompt_tokens: float, cached_tokens: float, completion_tokens: float) -> float:
        """In tokens read: what the engine's work for a request counts."""
        tunables = self._tunables
        computed = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0.0
        return computed + tunables.cached_weight * cached_tokens + tunables.output_weight * completion_tokens

    def told(self, entry: Entry, tokens: float) -> None:
        """It runs, and was served so much by now: what goes beyond the charge is charged."""
        account = entry.account
        assert account is not None
        ahead = entry.charged - tokens / account.weight
        if ahead < 0.0:
            self.charge(entry, tokens)
        else:
            account.ahead += ahead - entry.ahead
            entry.ahead = ahead

    def charge(self, entry: Entry, tokens: float, *, ahead: float = 0.0) -> None:
        """Make it `tokens` that the entry's tenant is charged for it, in place of what it was; `ahead` of them for later."""
        account = entry.account
        assert account is not None
        account.ahead += ahead / account.weight - entry.ahead
        entry.ahead = ahead / account.weight
        charged = tokens / account.weight
        account.counter += charged - entry.charged
        lowered, entry.charged = charged < entry.charged, charged
        if lowered:
            for line in account.lines:
                if line.heap_counter is not None and account.counter < line.heap_counter:
                    self._push(line)

    def learn(self, entry: Entry, completion_tokens: int) -> None:
        """So many it made in the end."""
        account = entry.account
        assert account is not None
        account.mean_completion_tokens += 0.1 * (completion_tokens - account.mean_completion_tokens)

    # Where one stands

    def place(self, entry: Entry) -> Place:
        """Of the one that came last of its tenant. O(1)."""
        account = entry.account
        assert account is not None
        return self._place(account, account.waiting - 1, account.waiting_tokens - entry.ask.work_tokens)

    def last_place(self) -> Place:
        """Behind everybody."""
        return Place(1 + self.num_waiting, sum(self._tokens))

    def places(self) -> Iterator[tuple[Entry, Place]]:
        """Of everybody. O(n log n)."""
        for account in self._accounts.values():
            waiting = [entry for line in account.lines for entry in line.in_order()]
            tokens = 0
            for ahead, entry in enumerate(sorted(waiting, key=lambda entry: (entry.arrival_s, entry.number))):
                yield entry, self._place(account, ahead, tokens)
                tokens += entry.ask.work_tokens

    def tenants_waiting(self) -> set[str]:
        return {account.tenant for account in self._accounts.values() if account.waiting}

    def _place(self, account: Account, own_ahead: int, own_tokens_ahead: int) -> Place:
        """More urgent tiers first; of its own tier, the others are served in proportion of the weights."""
        tier = account.tier
        own_share = self._weights[tier] / account.weight - 1.0
        others_waiting = self.waiting[tier] - account.waiting
        others_ahead = min(others_waiting, int((own_ahead + 0.5) * own_share)) if others_waiting else 0
        tokens = own_tokens_ahead
        if others_ahead:
            tokens += (self._tokens[tier] - account.waiting_tokens) * others_ahead // others_waiting
        position = 1 + own_ahead + others_ahead
        for urgent in range(tier):
            position += self.waiting[urgent]
            tokens += self._tokens[urgent]
        return Place(position, tokens)

    # Steps

    def _move_on(self, tier: Tier) -> None:
        """A tier's time is the counter of the last let through, as far as he has been served by now."""
        if (last := self._last[tier]) is not None:
            account, counter = last
            self._virtual_time[tier] = max(self._virtual_time[tier], min(counter, account.counter - account.ahead))

    def _lift(self, account: Account) -> None:
        self._move_on(account.tier)
        if account.counter < self._virtual_time[account.tier]:
            account.counter = self._virtual_time[account.tier]

    def _first(self, heap: list[tuple[float, int, TenantLine]]) -> tuple[float, int, Entry] | None:
        while heap:
            counter, number, line = heap[0]
            if line.heap_counter != counter:
                heappop(heap)
                continue
            account = line.account
            if account.counter != counter:
                line.heap_counter = account.counter
                heapreplace(heap, (account.counter, number, line))
                continue
            head = None if account.tenant in self._blocked_tenants else line.head()
            if head is not None:
                return counter, number, head
            heappop(heap)
            line.heap_counter = None
        return None

    def _activate(self, line: TenantLine) -> None:
        if line.heap_counter is None and line.heads and line.account.tenant not in self._blocked_tenants:
            self._push(line)

    def _push(self, line: TenantLine) -> None:
        lines = self._classes[line.line_class]
        heap = lines.heaps[line.account.tier]
        line.heap_counter = line.account.counter
        heappush(heap, (line.account.counter, line.number, line))
        if len(heap) > 2 * len(lines.lines) + 64:
            heap[:] = [item for item in heap if item[2].heap_counter == item[0]]
            heapify(heap)

    def _line(self, account: Account, line_class: LineClass) -> TenantLine:
        lines = self._classes.get(line_class)
        if lines is None:
            lines = self._classes[line_class] = _ClassLines()
            self._num_excluding += bool(line_class[0])
        line = lines.lines.get((account.tenant, account.tier))
        if line is None:
            self._next_number += 1
            line = TenantLine(account, line_class, self._next_number)
            lines.lines[(account.tenant, account.tier)] = line
            account.lines.append(line)
        return line

    def _drop(self, line: TenantLine) -> None:
        line.heap_counter = None
        line.heads.clear()
        line.account.lines.remove(line)
        lines = self._classes[line.line_class]
        del lines.lines[(line.account.tenant, line.account.tier)]
        if not lines.lines:
            del self._classes[line.line_class]
            self._num_excluding -= bool(line.line_class[0])

    def _lines_of(self, tenant: str) -> Iterator[TenantLine]:
        for tier in TIERS:
            account = self._accounts.get((tenant, tier))
            if account is not None:
                yield from account.lines

    def check_running(self, running: Collection[Entry]) -> None:
        """`running`: all that do. What is charged ahead is theirs alone."""
        for account in self._accounts.values():
            ahead = sum(entry.ahead for entry in running if entry.account is account)
            assert abs(account.ahead - ahead) < 1e-6 * (1.0 + account.counter)

    def check_invariants(self) -> None:
        assert self._num_excluding == sum(bool(line_class[0]) for line_class in self._classes)
        assert self.num_waiting == sum(self.waiting)
        for tier in TIERS:
            accounts = [account for account in self._accounts.values() if account.tier is tier]
            assert self.waiting[tier] == sum(account.waiting for account in accounts)
            assert self._tokens[tier] == sum(account.waiting_tokens for account in accounts)
            assert abs(self._weights[tier] - sum(account.weight for account in accounts if account.waiting)) < 1e-6
        for account in self._accounts.values():
            assert account.waiting == sum(line.size for line in account.lines)
            for line in account.lines:
                waiting = line.in_order()
                assert line.size == len(waiting) > 0, "an empty line is dropped"
                blocked = account.tenant in self._blocked_tenants
                free = [entry for entry in waiting if (account.tenant, entry.ask.key) not in self._blocked_keys]
                assert line.heap_counter is not None or blocked or not free, "somebody waits and would never be next"
                assert line.head() is (free[0] if free else None), "by arrival over the keys"
