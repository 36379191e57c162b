"""The copies of weights that are wanted on this node, fetched beside whatever its replicas do.

Each goes wanted → staging → staged. What failed is tried again after a pause that doubles, or, where trying cannot mend
it, when somebody asks. A staged copy is looked at now and then: one whose files have gone, or differ from what was staged, is
wanted again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from headway.errors import ConfigurationError, InvalidInput, Unavailable
from inference.node.backoff import Backoff
from inference.node.child import Cancelled, ChildFailed
from inference.node.jobs import Job
from inference.node.tools import Tools
from inference.node.weight_files import Staged, bytes_below, examine, signature_of
from inference.services.weight_copies import NodeCopies, WantedCopy
from inference.weight_models import CopyState
from inference.weight_uris import is_fetched, place_of

log = structlog.get_logger(__name__)
_S = CopyState
NOTE_EVERY_S = 1.0
LOOK_EVERY_S = 60.0
"""At a copy that is staged: names, sizes and times; files whose time moved are read again."""
EVICTED = "evicted: room was needed, and nothing needed it"
GONE = "its files are gone"


@dataclass(frozen=True)
class Fetched:
    """`size_bytes`: of the folder it lies in."""

    staged: Staged
    size_bytes: int


@dataclass(frozen=True)
class Seen:
    """What a look at a staged copy has found. `why`: it is not whole; empty: it is, while it has that signature."""

    signature: list[list[Any]]
    why: str = ""


def look_at(place: Path, before: Seen | None) -> Seen:
    """A folder that is as it was seen before is not read again."""
    signature = signature_of(place)
    if before is not None and not before.why and signature == before.signature:
        return before
    found = examine(place)
    return Seen(signature) if isinstance(found, Staged) else Seen(signature, found.why or GONE)


class CopyRun:
    """One copy. `state` is what was told of it last."""

    def __init__(self, tools: Tools, wanted: WantedCopy) -> None:
        self.tools, self.wanted = tools, wanted
        self.state = CopyState(wanted.state)
        self._job: Job[Fetched] | None = None
        self._backoff = Backoff(
            first_s=tools.settings.backoff_first_s,
            ceiling_s=tools.settings.backoff_ceiling_s,
            reset_after_s=tools.settings.backoff_reset_s,
        )
        self._is_final = wanted.is_final
        self._retry_at_s = 0.0
        self._next_note_s = 0.0
        self._looking: Job[Seen] | None = None
        self._seen: Seen | None = None
        self._next_look_s = 0.0

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def is_due(self, now_s: float) -> bool:
        """To be fetched now."""
        if self._job is not None:
            return False
        if self.state is _S.FAILED:
            return not self._is_final and now_s >= self._retry_at_s
        return self.state in {_S.WANTED, _S.STAGING}  # staging without a job: an earlier agent was at it

    def start(self) -> None:
        if self.state is not _S.STAGING:
            self._move(_S.STAGING, "looking for the weights")
        wanted = self.wanted
        self._job = self.tools.jobs.start(f"copy-{wanted.version_id}", lambda job: self._fetch(wanted, job))

    def _fetch(self, wanted: WantedCopy, job: Job[Fetched]) -> Fetched:
        staged = self.tools.stage(wanted, job)
        return Fetched(staged, bytes_below(staged.path))

    def step(self, now_s: float) -> None:
        if self._job is None:
            if self.state is _S.STAGED:
                self._look(now_s)
        elif self._job.is_done:
            self._ended(self._job, now_s)
        elif now_s >= self._next_note_s:
            self._next_note_s = now_s + NOTE_EVERY_S
            done_bytes, total_bytes = self._job.measured
            self.tools.link.note_copy(self.wanted.version_id, self._job.progress, done_bytes, total_bytes)

    def _look(self, now_s: float) -> None:
        """It may have gone, or been changed, by whatever hand."""
        place, before = place_of(self.wanted.weights_uri, self.tools.disk.folder), self._seen
        if self._looking is None:
            if now_s >= self._next_look_s and is_fetched(self.wanted.weights_uri):
                self._looking = self.tools.jobs.start(f"look-{self.wanted.version_id}", lambda _job: look_at(place, before))
            return
        if not self._looking.is_done:
            return
        looking, self._looking, self._next_look_s = self._looking, None, now_s + LOOK_EVERY_S
        try:
            self._seen = looking.result()
        except OSError as error:  # the folder is being replaced, or its disk is away for a moment
            log.warning("copy_not_looked_at", version=self.wanted.version_id, reason=str(error))
            return
        if self._seen.why and not self.tools.disk.is_evicted(place):
            log.warning("copy_not_whole", version=self.wanted.version_id, reason=self._seen.why)
            self._move(_S.WANTED, self._seen.why)

    def _ended(self, job: Job[Fetched], now_s: float) -> None:
        self._job = None
        try:
            fetched = job.result()
        except InvalidInput as error:
            self._fail(error.message, now_s, is_final=True)
        except (ChildFailed, Cancelled, ConfigurationError, Unavailable, OSError) as error:
            self._fail(str(error) or type(error).__name__, now_s)
        except Exception as error:  # a job is a boundary: whatever it ran into is this copy's trouble alone
            log.exception("copy_job_failed", version=self.wanted.version_id)
            self._fail(f"the node agent failed on it ({type(error).__name__}); see its log", now_s, is_final=True)
        else:
            self._next_look_s = now_s + LOOK_EVERY_S
            if self.state is _S.STAGED:  # a replica was quicker, and has told it
                return
            self.tools.link.record_digest(self.wanted.version_id, fetched.staged.digest)
            self._move(_S.STAGED, "", size_bytes=fetched.size_bytes, digest=fetched.staged.digest)

    def _fail(self, reason: str, now_s: float, *, is_final: bool = False) -> None:
        if self.state is _S.STAGED:
            return
        self._is_final = is_final
        self._retry_at_s = self._backoff.failed(now_s=now_s, ready_since_s=None)
        self._move(_S.FAILED, reason, is_final=is_final)

    def _move(self, to: CopyState, reason: str, **changes: object) -> None:
        before, self.state = self.state, to
        self.tools.link.move_copy(self.wanted.version_id, expected=before, to=to, reason=reason, **changes)

    def sync(self, row: WantedCopy) -> None:
        """Take over what the registry says now."""
        self.wanted = row
        if row.state != self.state:
            log.info("copy_moved_by_another", version=row.version_id, here=self.state, there=row.state)
            self.state, self._is_final, self._retry_at_s = CopyState(row.state), row.is_final, 0.0
            self._next_look_s = 0.0

    def cancel(self) -> Job[Fetched] | None:
        job = self._job
        if job is not None:
            job.cancel()
        return job


class Copies:
    """All of a node's. Used from the agent's loop only."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.runs: dict[int, CopyRun] = {}

    def sync(self, found: NodeCopies) -> None:
        self.tools.disk.need(found.needed_uris)
        for row in found.copies:
            run = self.runs.get(row.version_id)
            if run is None:
                self.runs[row.version_id] = CopyRun(self.tools, row)
            else:
                run.sync(row)
        for version_id in self.runs.keys() - {row.version_id for row in found.copies}:
            self.runs.pop(version_id).cancel()

    def step(self, now_s: float) -> None:
        self._tell_evicted()
        for run in self.runs.values():
            run.step(now_s)
        room = self.tools.settings.disk.fetches_at_once - sum(1 for run in self.runs.values() if run.is_busy)
        for run in [run for run in self.runs.values() if run.is_due(now_s)][: max(0, room)]:
            run.start()

    def _tell_evicted(self) -> None:
        evicted = set(self.tools.disk.take_evicted())
        if not evicted:
            return
        gone = [
            version_id
            for version_id, run in self.runs.items()
            if not run.is_busy and place_of(run.wanted.weights_uri, self.tools.disk.folder) in evicted
        ]
        for version_id in gone:
            del self.runs[version_id]
        self.tools.link.record_evicted(gone, EVICTED)

    def halt(self) -> list[Job[Fetched]]:
        return [job for job in (run.cancel() for run in self.runs.values()) if job is not None]
