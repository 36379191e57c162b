"""The agent's link to the database, which may be away: what is to be told then is kept and told in order later.

Used from the agent's loop only (a database connection belongs to one thread).
"""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import structlog
from django.db import InterfaceError, OperationalError, connection

from headway.clock import Clock
from headway.revocation import Revocations
from inference.errors import IllegalTransition, NodeNameTaken, UnknownReplica
from inference.models import ReplicaState
from inference.services import control
from inference.services import node as rows
from inference.services import weight_copies as copy_rows
from inference.services.engine_counters import Count, note_count
from inference.services.fleet_sweep import look_after_fleet
from inference.services.heartbeats import Beat, check_name, note_beat
from inference.services.log_tails import tell_logs
from inference.services.node import Desired, ReferenceKey
from inference.services.replicas import advance
from inference.services.revocations import fetch_revocations
from inference.services.weight_copies import NodeCopies
from inference.weight_models import CopyState

log = structlog.get_logger(__name__)
T = TypeVar("T")
RETRY_S = 2.0
AWAY = (OperationalError, InterfaceError)


class Call(Protocol):
    """How a database call is made: in place, or by DatabaseThread."""

    def __call__(self, work: Callable[[], T]) -> T: ...


def in_place(work: Callable[[], T]) -> T:
    return work()


class ControlLink:
    def __init__(self, node: str, clock: Clock, call: Call = in_place, agent: str = "") -> None:
        """`agent`: tells this one from others that were given the same name."""
        self.node, self.agent = node, agent
        self.is_ousted = False
        """Another agent has this one's name: nothing of what the registry says of the node is meant for this one."""
        self._call = call
        self._clock = clock
        self._reports: deque[Callable[[], object]] = deque()
        self._away_until_s: float | None = None
        self._newest_change: int | None = None
        self._references: dict[ReferenceKey, list[list[float]]] = {}

    @property
    def is_away(self) -> bool:
        return self._away_until_s is not None

    @property
    def num_reports_waiting(self) -> int:
        return len(self._reports)

    def has_news(self) -> bool:
        """Whether anything was published of a replica since this was last asked. False while the database is away."""
        newest, is_news = self._try(lambda: control.replica_news(after=self._newest_change), default=(None, False))
        self._newest_change = newest
        return bool(is_news)

    def poll(self) -> list[Desired] | None:
        """This node's replicas, once every earlier report is told; None while the database is away.

        None of them are, where another agent has this one's name: its engines must go, as those of a lost node.
        """
        if self._try(self._look_who_has_the_name, default=AWAY) is AWAY:
            return None
        if self.is_ousted:
            self._reports.clear()
            return []
        return self._try(lambda: rows.replicas_of(self.node)) if self.flush() else None

    def _look_who_has_the_name(self) -> None:
        try:
            check_name(node=self.node, agent=self.agent)
        except NodeNameTaken as taken:
            if not self.is_ousted:
                log.error("node_name_taken", reason=taken.message)
            self.is_ousted = True
        else:
            self.is_ousted = False

    def poll_copies(self) -> NodeCopies | None:
        """The copies of weights that are wanted here; None while the database is away, or they are another agent's."""
        if self.is_ousted or not self.flush():
            return None
        return self._try(lambda: copy_rows.copies_of(self.node))

    def flush(self) -> bool:
        """Tell what waits, in order. False if something still waits."""
        while self._reports:
            if self._try(self._reports[0], default=AWAY) is AWAY:
                return False
            self._reports.popleft()
        return True

    def move(self, replica_id: str, *, expected: ReplicaState, to: ReplicaState, **changes: Any) -> None:
        def report() -> None:
            try:
                advance(replica_id=replica_id, expected=expected, to=to, **changes)
            except (IllegalTransition, UnknownReplica) as refusal:
                # Someone else moved it, or it is gone: the next poll says how things stand.
                log.warning("report_refused", replica=replica_id, to=to, reason=refusal.message)

        self._reports.append(report)
        self.flush()

    def note(self, replica_id: str, state: ReplicaState, reason: str) -> None:
        """How far it is; not worth keeping if the database is away."""
        self._try(lambda: rows.set_reason(replica_id=replica_id, state=state, reason=reason))

    def record_digest(self, version_id: int, digest: str) -> None:
        self._reports.append(lambda: rows.record_digest(version_id=version_id, digest=digest))
        self.flush()

    def move_copy(self, version_id: int, *, expected: CopyState, to: CopyState, **changes: Any) -> None:
        def report() -> None:
            try:
                copy_rows.advance_copy(version_id=version_id, node=self.node, expected=expected, to=to, **changes)
            except IllegalTransition as refusal:
                log.warning("copy_report_refused", version=version_id, to=to, reason=refusal.message)

        self._reports.append(report)
        self.flush()

    def note_copy(self, version_id: int, progress: str, done_bytes: int, total_bytes: int) -> None:
        """How far it is; not worth keeping if the database is away."""
        self._try(
            lambda: copy_rows.note_copy(
                version_id=version_id, node=self.node, reason=progress, bytes_done=done_bytes, bytes_total=total_bytes
            )
        )

    def record_use(self, version_id: int, *, size_bytes: int, digest: str) -> None:
        """A replica starts from its copy."""
        self._reports.append(
            lambda: copy_rows.record_use(version_id=version_id, node=self.node, size_bytes=size_bytes, digest=digest)
        )
        self.flush()

    def record_evicted(self, version_ids: list[int], reason: str) -> None:
        self._reports.append(lambda: copy_rows.record_evicted(node=self.node, version_ids=version_ids, reason=reason))
        self.flush()

    def record_tokeniser(self, digest: str, content: bytes) -> None:
        """Before the move that names it."""
        self._reports.append(lambda: rows.record_tokeniser(digest=digest, content=content))
        self.flush()

    def reference(self, key: ReferenceKey) -> list[list[float]] | None:
        if key not in self._references:
            found = self._try(lambda: rows.golden_reference(key))
            if found is not None:
                self._references[key] = found
        return self._references.get(key)

    def record_reference(self, key: ReferenceKey, logprobs: list[list[float]], replica_id: str) -> list[list[float]]:
        """Keep the first; returns the one that is kept (with the database away: ours, until it says otherwise)."""

        def report() -> None:
            self._references[key] = rows.record_reference(key, logprobs=logprobs, replica_id=replica_id)

        self._references.setdefault(key, logprobs)
        self._reports.append(report)
        self.flush()
        return self._references[key]

    def newest_change_of(self, replica_id: str) -> int:
        """0 while the database is away."""
        return self._try(lambda: rows.newest_change_of(replica_id), default=0) or 0

    def count(self, count: Count) -> bool:
        """What an engine has counted. False while the database is away: a later one says it as well."""
        return self._try(lambda: note_count(count), default=AWAY) is not AWAY

    def beat(self, beat: Beat) -> None:
        """Not while another agent has this one's name; `poll` finds that."""

        def tell() -> None:
            with contextlib.suppress(NodeNameTaken):
                note_beat(node=self.node, beat=replace(beat, agent=self.agent))

        self._try(tell)

    def look_after_fleet(self) -> None:
        """What Celery's beat has done as well, where it runs."""
        self._try(look_after_fleet)

    def fetch_revocations(self, revocations: Revocations) -> None:
        """Certificates that are good no more."""
        self._try(lambda: fetch_revocations(revocations))

    def tell_logs(self, tail: Callable[[str], str]) -> None:
        """Answer operators who asked for the last lines of an engine's log (by replica id)."""
        self._try(lambda: tell_logs(node=self.node, tail=tail))

    def _try(self, work: Callable[[], T], default: Any = None) -> T | Any:
        """The work's result, or `default` while the database is away (asked again after RETRY_S at the soonest)."""
        now_s = self._clock.monotonic_s()
        if self._away_until_s is not None and now_s < self._away_until_s:
            return default
        try:
            result = self._call(work)
        except AWAY as error:
            if self._away_until_s is None:
                log.warning("database_away", reason=str(error).strip().splitlines()[0] if str(error) else type(error).__name__)
            self._away_until_s = now_s + RETRY_S
            connection.close()
            return default
        if self._away_until_s is not None:
            log.info("database_back", reports_waiting=len(self._reports))
            self._away_until_s = None
        return result
