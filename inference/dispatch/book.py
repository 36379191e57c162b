"""What a gateway holds at its dispatcher, kept so that it can be told to another one."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from inference.dispatch.wire import Acknowledged, Away, Running, Said, Settled, Waiting, outgoing
from inference.policy.decisions import Ask, Granted, Usage

WINDOW_S = 60.0
"""How long what has ended counts for limits."""
ROW_SEEN_WITHIN_S = 1.0
"""After the ledger took a settlement: by then every dispatcher has read the month's row with it. Told as not acknowledged
before that, since to count it twice is better than not at all."""
MAX_SETTLED = 200_000
"""The oldest are forgotten beyond it: about 100 MB."""

MAX_BLOCKS_TOLD = 64
"""Of the prompts that run: enough for the new dispatcher to find their replicas again."""


class Stage(Enum):
    ASKING = "asking"  # said, or to be said; no answer yet
    WAITING = "waiting"
    RUNNING = "running"
    AWAY = "away"


@dataclass(slots=True)
class Line:
    ask: Ask
    """As it was first granted, or asked: what is reserved, when anything is."""
    latest: Ask
    stage: Stage
    asked_s: float
    """When it began to wait."""
    reserved_s: float | None = None
    """When its reservation was heard of, which is a little later than it was made; None: nothing is reserved."""
    said_s: float | None = None
    """When a dispatcher was asked last; None: none was."""
    is_heard: bool = False
    """There was an answer."""
    replica: str = ""
    completion_tokens: int = 0


@dataclass(slots=True)
class _End:
    number: int
    ask: Ask
    reserved_s: float
    usage: Usage
    acknowledged_s: float | None
    """When the ledger was heard to have it; -inf: it cost nothing."""
    is_void: bool = False
    """It was refused after it had given up."""


class Book:
    """Times are seconds of the gateway's own clock."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self._ended: deque[_End] = deque()  # in the order of their numbers
        self._unacknowledged: dict[str, _End] = {}  # that cost something
        self._unheard: dict[str, _End] = {}  # given up, and their answers are on their way
        self._num_ended = 0

    def asked(self, ask: Ask, now_s: float) -> Line:
        line = self.lines.get(ask.id)
        if line is None:
            line = self.lines[ask.id] = Line(ask, ask, Stage.ASKING, now_s)
        line.latest, line.stage, line.asked_s, line.replica = ask, Stage.ASKING, now_s, ""
        return line

    def said(self, request_id: str, now_s: float) -> None:
        self.lines[request_id].said_s = now_s

    def queued(self, request_id: str, max_tokens: int, now_s: float) -> None:
        self._unheard.pop(request_id, None)
        line = self.lines.get(request_id)
        if line is not None and line.stage in {Stage.ASKING, Stage.WAITING}:
            line.stage = Stage.WAITING
            self._reserved(line, max_tokens, now_s)

    def granted(self, decision: Granted, now_s: float) -> Granted | None:
        """As it is to be used; None: it is not waited for."""
        self._unheard.pop(decision.id, None)
        line = self.lines.get(decision.id)
        if line is None or line.stage in {Stage.AWAY, Stage.RUNNING}:
            return None
        self._reserved(line, decision.max_tokens, now_s)
        line.stage, line.replica = Stage.RUNNING, decision.replica
        if decision.max_tokens > line.latest.max_tokens:
            # A dispatcher that took over knows what was reserved, not what is left of it.
            return replace(decision, max_tokens=line.latest.max_tokens)
        return decision

    def parked(self, request_id: str, ask: Ask, now_s: float) -> None:
        line = self.lines.get(request_id)
        if line is not None:
            line.latest, line.stage, line.asked_s, line.replica = ask, Stage.WAITING, now_s, ""

    def progress(self, request_id: str, completion_tokens: int) -> None:
        line = self.lines.get(request_id)
        if line is not None:
            line.completion_tokens = completion_tokens

    def away(self, request_id: str) -> None:
        """It will ask again or end. One that was asked for and gave up before there was an answer may have been reserved:
        it counts as if it was, unless the answer still comes and is a refusal.
        """
        line = self.lines.get(request_id)
        if line is not None:
            line.stage, line.replica = Stage.AWAY, ""
            if line.reserved_s is None:
                line.reserved_s = line.said_s

    def ended(self, request_id: str, usage: Usage, now_s: float) -> int:
        """The number of its end; 0 where nothing was reserved."""
        line = self.lines.pop(request_id, None)
        if line is None or line.reserved_s is None:
            return 0
        self._num_ended += 1
        bare = replace(line.ask, blocks=(), excluded=frozenset(), deadline_s=None)
        end = _End(self._num_ended, bare, line.reserved_s, usage, None if usage.amount_picos else -inf)
        self._ended.append(end)
        if not line.is_heard:
            self._unheard[request_id] = end
        if end.acknowledged_s is None:
            self._unacknowledged[request_id] = end
        self._forget_old(now_s)
        return end.number

    def refused(self, request_id: str, now_s: float) -> None:
        """Nothing stays reserved of one that never ran; one that was parked has used what it made."""
        line = self.lines.get(request_id)
        if line is None:
            end = self._unheard.pop(request_id, None)
            if end is not None:
                end.is_void = True
            return
        if not line.completion_tokens:
            del self.lines[request_id]
            return
        prompt, made = line.ask.prompt_tokens, line.completion_tokens
        picos = line.ask.price.amount_picos(prompt_tokens=0, cached_tokens=0, completion_tokens=made)
        self.ended(request_id, Usage(prompt, 0, made, picos), now_s)

    def acknowledged(self, request_id: str, now_s: float) -> Acknowledged | None:
        """The ledger has it. None: it cost nothing, or was settled elsewhere."""
        end = self._unacknowledged.pop(request_id, None)
        if end is None:
            return None
        end.acknowledged_s = now_s
        return Acknowledged(end.ask.tenant, end.ask.key, end.ask.model, end.usage.amount_picos)

    def announce(self, settled_through: int, now_s: float) -> Iterator[Said]:
        """All that is held; what has ended, from the number after `settled_through`."""
        self._unheard.clear()  # those answers will not come
        self._forget_old(now_s)
        for end in self._ended:
            if end.number > settled_through and not end.is_void:
                is_in_row = end.acknowledged_s is not None and now_s - end.acknowledged_s > ROW_SEEN_WITHIN_S
                yield Settled(end.number, end.ask, now_s - end.reserved_s, end.usage, is_in_row)
        for line in self.lines.values():
            if line.reserved_s is None:
                continue
            ask, age_s = outgoing(_as_it_waits(line), now_s), now_s - line.reserved_s
            if line.stage is Stage.WAITING:
                yield Waiting(ask, age_s, now_s - line.asked_s)
                continue
            ask = replace(ask, blocks=ask.blocks[:MAX_BLOCKS_TOLD])
            if line.stage is Stage.RUNNING:
                yield Running(ask, line.replica, age_s, line.completion_tokens)
            else:
                yield Away(ask, age_s)

    def _reserved(self, line: Line, max_tokens: int, now_s: float) -> None:
        line.is_heard = True
        if line.reserved_s is None:
            line.reserved_s = now_s
            if max_tokens != line.ask.max_tokens:
                line.ask = replace(line.ask, max_tokens=max_tokens)

    def _forget_old(self, now_s: float) -> None:
        ended = self._ended
        while ended and (len(ended) > MAX_SETTLED or ended[0].reserved_s + WINDOW_S < now_s):
            if ended[0].acknowledged_s is None and len(ended) <= MAX_SETTLED:
                break
            ended.popleft()


def _as_it_waits(line: Line) -> Ask:
    """One that waits for a restart may have been forgiven its replica by the dispatcher before: nobody knows here."""
    waits = line.latest.waits_for_restart
    return replace(line.ask, excluded=frozenset() if waits else line.latest.excluded, waits_for_restart=waits)
