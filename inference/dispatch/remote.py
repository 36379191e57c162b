"""A gateway's link to a dispatcher in another process: attaches, says again what it holds, and does so anew after each break.

While nobody is attached new requests wait for a stated time and are refused then; what runs is not touched, and what ends
is told at the next attachment.
"""

import asyncio
import contextlib
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from billing.services.ledger import UsageDraft
from headway import env
from headway.clock import Clock
from headway.errors import ConfigurationError, HeadwayError
from inference.dispatch.address import Address, Tls, parse_address
from inference.dispatch.book import Book, Stage
from inference.dispatch.heartbeat import HeartbeatTunables
from inference.dispatch.link_connection import LinkConnection
from inference.dispatch.refusals import brain_away_error
from inference.dispatch.wire import (
    Announced,
    AskRates,
    Drafts,
    End,
    Final,
    FirstToken,
    InLedger,
    Parked,
    Progress,
    Submit,
    Welcome,
    outgoing,
)
from inference.policy.decisions import Ask, Decision, Ending, RateView, Usage

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteTunables:
    wait_s: float = 5.0
    """How long a request waits for a dispatcher to be there."""
    max_waiting: int = 10_000
    """How many do; more are refused at once."""
    first_pause_s: float = 0.01
    """Between attempts to connect; doubles."""
    max_pause_s: float = 0.1
    connect_s: float = 2.0
    """How long one attempt may take, up to the dispatcher's welcome."""
    freeze_s: float = 5.0
    """Not heard of a dispatcher over TCP for so long: it may have given our slots away, so what runs is cut."""
    heartbeat: HeartbeatTunables = field(default_factory=HeartbeatTunables)

    @classmethod
    def from_env(cls) -> "RemoteTunables":
        return cls(
            wait_s=env.seconds("HEADWAY_DISPATCHER_WAIT_S", cls().wait_s),
            freeze_s=env.seconds("HEADWAY_DISPATCHER_FREEZE_S", cls().freeze_s),
        )


MAX_FINALS = 20_000
"""Records that are told to the next dispatcher because the ledger has not taken them yet; the oldest are forgotten."""


class Asker(Protocol):
    """dispatcher.Dispatcher, as seen from here."""

    def deliver(self, decisions: list[Decision]) -> None: ...
    def refuse(self, request_id: str, error: HeadwayError) -> None: ...
    def draft_of(self, request_id: str) -> UsageDraft | None: ...
    def cut_running(self) -> None: ...


class RemoteLink:
    """A `Link`; its methods belong to the event loop. `locate` is asked before each attempt, and must not block."""

    def __init__(
        self,
        gateway: str,
        asker: Asker,
        locate: Callable[[], Address | None],
        clock: Clock,
        *,
        tunables: RemoteTunables | None = None,
        secret: str = "",
        newest_epoch: Callable[[], int] = lambda: 0,
        tls: Tls | None = None,
    ) -> None:
        """`tls`: whom to believe on other machines. `newest_epoch`: that the lease row was seen with."""
        self.gateway, self.secret, self._newest_epoch = gateway, secret, newest_epoch
        self.highest_epoch = 0
        """That was seen: a dispatcher of an older one is not listened to."""
        self.book = Book()
        self.num_attached = 0
        self._asker, self._locate, self.clock, self._tls = asker, locate, clock, tls
        self._is_distrusted = False
        self.tunables = tunables or RemoteTunables()
        self._connection: LinkConnection | None = None  # that has been welcomed
        self._task: asyncio.Task[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._is_open = False
        self._detached_s = clock.monotonic_s()
        self._cut_timer: asyncio.TimerHandle | None = None
        self._standbys: list[Address] = []
        self._num_tries = -1
        self._held: dict[str, None] = {}  # asks that nobody has been told, in their order
        self._rates_asked: dict[int, Callable[[RateView], None]] = {}
        self._num_rates_asked = 0
        self._drafted: set[str] = set()  # whose records this dispatcher has been told
        self._finals: OrderedDict[str, UsageDraft] = OrderedDict()  # that the ledger does not have yet

    @property
    def is_open(self) -> bool:
        """There is someone who decides."""
        return self._is_open

    def start(self) -> None:
        """On the running loop; again: nothing happens."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay_attached())

    async def close(self) -> None:
        """A clean goodbye: the dispatcher frees what is still held."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            self._connection.close()
        if self._sweep is not None:
            self._sweep.cancel()
        self._cut_no_more()

    # The Link

    def submit(self, ask: Ask) -> None:
        self.start()
        now_s = self.clock.monotonic_s()
        self.book.asked(ask, now_s)
        self._drafted.discard(ask.id)
        if self._is_open and self._connection is not None:
            self.book.said(ask.id, now_s)
            self._connection.say(Submit(outgoing(ask, now_s)))
        elif len(self._held) >= self.tunables.max_waiting:
            self._refuse(ask.id)
        else:
            self._held[ask.id] = None
            self._watch()

    def first_token(self, request_id: str) -> None:
        if self._connection is not None:
            self._connection.say(FirstToken(request_id))

    def progress(self, tokens: Iterable[tuple[str, int]]) -> None:
        told = list(tokens)
        for request_id, completion_tokens in told:
            self.book.progress(request_id, completion_tokens)
        if self._connection is not None:
            drafts = self._untold_drafts(told)
            if drafts:
                self._connection.say(Drafts(drafts))
            self._connection.say(Progress(told))

    def _untold_drafts(self, told: list[tuple[str, int]]) -> list[UsageDraft]:
        new = [request_id for request_id, tokens in told if tokens and request_id not in self._drafted]
        self._drafted.update(new)
        return [draft for draft in map(self._asker.draft_of, new) if draft is not None]

    def final(self, draft: UsageDraft) -> None:
        self._finals[draft.request_id] = draft
        if len(self._finals) > MAX_FINALS:
            self._finals.popitem(last=False)
        if self._connection is not None:
            self._connection.say(Final(draft))

    def end(self, request_id: str, ending: Ending, usage: Usage | None) -> None:
        was_held = self._held.pop(request_id, 0) is None
        number = 0
        if usage is None:
            self.book.away(request_id)
        else:
            number = self.book.ended(request_id, usage, self.clock.monotonic_s())
            self._drafted.discard(request_id)
        if self._connection is not None and not (was_held and not number):
            self._connection.say(End(number, request_id, ending, usage))

    def parked(self, request_id: str, ask: Ask) -> None:
        self.book.parked(request_id, ask, self.clock.monotonic_s())
        self._drafted.discard(request_id)
        if self._connection is not None:
            self._connection.say(Parked(request_id, outgoing(ask, self.clock.monotonic_s())))
        else:
            self._watch()

    def rates(self, tenant: str, key: str, model: str, answer: Callable[[RateView], None]) -> None:
        """No answer where nobody is attached, or the connection ends first."""
        if self._is_open and self._connection is not None:
            self._num_rates_asked += 1
            self._rates_asked[self._num_rates_asked] = answer
            self._connection.say(AskRates(self._num_rates_asked, tenant, key, model))

    def rates_told(self, number: int, rates: RateView) -> None:
        answer = self._rates_asked.pop(number, None)
        if answer is not None:
            answer(rates)

    def acknowledged(self, request_ids: Iterable[str]) -> None:
        """The ledger has these requests' usage."""
        in_ledger = []
        for request_id in request_ids:
            told = self.book.acknowledged(request_id, self.clock.monotonic_s())
            if told is not None and self._connection is not None:
                self._connection.say(told)
            if self._finals.pop(request_id, None) is not None:
                in_ledger.append(request_id)
        if in_ledger and self._connection is not None:
            self._connection.say(InLedger(in_ledger))

    # Being attached

    async def _stay_attached(self) -> None:
        pause_s = self.tunables.first_pause_s
        while True:
            ended = await self._attach()
            if ended is not None:
                pause_s = self.tunables.first_pause_s
                await ended
            await asyncio.sleep(pause_s)
            if ended is None:
                pause_s = min(pause_s * 2, self.tunables.max_pause_s)

    async def _attach(self) -> Awaitable[None] | None:
        """Once. What it returns is done when the connection has ended; None: nobody, or nobody that may decide."""
        address = self._next_address()
        if address is None:
            return None
        connection = LinkConnection(self, is_local=address.path is not None)
        try:
            async with asyncio.timeout(self.tunables.connect_s):
                await address.connect(lambda: connection)
                if await connection.welcomed:
                    self._is_distrusted = False
                    return connection.ended
        except ConnectionRefusedError:
            # Its machine says that nobody decides there: nobody gives our slots away.
            if self._cut_timer is not None:
                self._cut_at(asyncio.get_running_loop().time() + self.tunables.freeze_s)
        except ssl.SSLError as error:
            if not self._is_distrusted:
                log.error("dispatcher_not_trusted", address=str(address), reason=error.reason or str(error))
            self._is_distrusted = True
        except (OSError, TimeoutError):
            pass
        connection.abandon()
        return None

    def standbys_are(self, addresses: Iterable[str]) -> None:
        """Where to ask besides, while the row cannot say who follows."""
        self._standbys = []
        for address in addresses:
            with contextlib.suppress(ConfigurationError):
                self._standbys.append(parse_address(address, tls=self._tls))

    def _next_address(self) -> Address | None:
        located = self._locate()
        known = [*([located] if located is not None else []), *(each for each in self._standbys if each != located)]
        self._num_tries += 1
        return known[self._num_tries % len(known)] if known else None

    def _cut_at(self, at_s: float) -> None:
        self._cut_no_more()
        self._cut_timer = asyncio.get_running_loop().call_at(at_s, self._cut)

    def _cut_no_more(self) -> None:
        if self._cut_timer is not None:
            self._cut_timer.cancel()
            self._cut_timer = None

    def _cut(self) -> None:
        self._cut_timer = None
        log.error("gateway_cut_off", epoch=self.highest_epoch, running=len(self.book.lines))
        self._asker.cut_running()

    # What the connection hears

    def welcomed(self, connection: LinkConnection, welcome: Welcome) -> bool:
        """Say what is held. False: it is of an older epoch than one that was seen."""
        if welcome.epoch < self.highest_epoch:
            log.warning("dispatcher_stale", epoch=welcome.epoch, highest_epoch=self.highest_epoch)
            return False
        self.highest_epoch = welcome.epoch
        self._connection = connection
        self._num_tries = -1  # so that the first address is the next
        self._cut_no_more()
        self.num_attached += 1
        for frame in self.book.announce(welcome.settled_through, self.clock.monotonic_s()):
            connection.say(frame)
        for draft in self._finals.values():
            connection.say(Final(draft))
        self._drafted.clear()
        connection.say(Announced())
        return True

    def opened(self, connection: LinkConnection) -> None:
        if connection is not self._connection:
            return
        self._is_open = True
        log.info("dispatcher_attached", epoch=self.highest_epoch, held=len(self._held))
        now_s = self.clock.monotonic_s()
        asking, self._held = self._held, {}
        for request_id in asking:
            line = self.book.lines.get(request_id)
            if line is not None and line.stage is Stage.ASKING:
                self.book.said(request_id, now_s)
                connection.say(Submit(outgoing(line.latest, now_s)))

    def look_for_newer(self, connection: LinkConnection) -> None:
        """The row names another dispatcher by now: ours is cut off from it, and is left."""
        if self._newest_epoch() > self.highest_epoch:
            log.warning("dispatcher_replaced", epoch=self.highest_epoch, newest_epoch=self._newest_epoch())
            connection.abandon()

    def lost(self, connection: LinkConnection) -> None:
        if connection is not self._connection:
            return
        self._connection, self._is_open = None, False
        self._rates_asked.clear()
        if not connection.is_local:
            # The dispatcher has heard of us no earlier than we of it: its freeze ends no sooner.
            self._cut_at(connection.heard_s + self.tunables.freeze_s)
        self._detached_s = self.clock.monotonic_s()
        log.warning("dispatcher_lost", epoch=self.highest_epoch)
        self._held = {name: None for name, line in self.book.lines.items() if line.stage is Stage.ASKING}
        self._watch()

    def decided(self, decisions: list[Decision]) -> None:
        self._asker.deliver(decisions)

    # While nobody is there

    def _watch(self) -> None:
        if self._sweep is None and not self._is_open:
            self._sweep = asyncio.get_running_loop().call_later(min(0.25, self.tunables.wait_s), self._look)

    def _look(self) -> None:
        """Refuse those who have waited long enough for somebody to decide."""
        self._sweep = None
        if self._is_open:
            return
        last_s = self.clock.monotonic_s() - self.tunables.wait_s
        is_waiting = False
        for request_id, line in list(self.book.lines.items()):
            if line.stage in {Stage.ASKING, Stage.WAITING}:
                if max(line.asked_s, self._detached_s) <= last_s:
                    self._refuse(request_id)
                else:
                    is_waiting = True
        if is_waiting:
            self._watch()

    def _refuse(self, request_id: str) -> None:
        self._held.pop(request_id, None)
        self.book.refused(request_id, self.clock.monotonic_s())
        self._asker.refuse(request_id, brain_away_error())
