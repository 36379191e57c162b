"""In-memory twins of what a replica's run works with, so that its whole life takes milliseconds."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.clock import FakeClock
from headway.home import Home
from headway.revocation import Revocations
from inference.engines.client import EngineClient, ForcedAnswer
from inference.engines.environments import EngineEnvironment, EngineKind
from inference.engines.vllm import EngineLoad
from inference.errors import EngineFailed
from inference.launchers.base import LaunchFailed, LaunchSpec, Running
from inference.models import ReplicaState
from inference.node.disk import WeightsDisk
from inference.node.jobs import Job
from inference.node.node_files import NodeFiles
from inference.node.node_settings import NodeSettings
from inference.node.tools import Tools
from inference.node.weight_files import Staged
from inference.services.engine_counters import Count
from inference.services.heartbeats import Beat
from inference.services.node import Desired, ReferenceKey
from inference.services.weight_copies import NodeCopies
from inference.tokenising.bundle import TokeniserBundle
from inference.tokenising.counter import PromptCounter
from inference.weight_models import CopyState

T = TypeVar("T")
IDLE = EngineLoad(num_running=0, num_waiting=0, kv_usage_ratio=0.0, progress=0.0)


class NowJobs:
    """Runs a job when it is started."""

    def __init__(self) -> None:
        self.finished = threading.Event()

    def start(self, _name: str, work: Callable[[Job[T]], T]) -> Job[T]:
        job: Job[T] = Job()
        job.run(work)
        return job


class LaterJobs:
    """Keeps jobs until `finish` is called."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.finished = threading.Event()

    def start(self, _name: str, work: Callable[[Job[T]], T]) -> Job[T]:
        job: Job[T] = Job()
        self.waiting.append(lambda: job.run(work))
        return job

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            run()


class FakeLauncher:
    """Processes are numbers; a test kills one by taking it out of `alive`."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.leftover: set[int] = set()
        self.launched: list[LaunchSpec] = []
        self.signals: list[tuple[str, int]] = []
        self.status: int | None = -9
        self.ignores_sigterm = False
        self.failure = ""

    def prepare(self, environment: EngineEnvironment, process_environment: Any) -> None:
        pass

    def refusal(self, environment: EngineEnvironment, process_environment: Any, arguments: Any) -> str:
        return ""

    def launch(self, spec: LaunchSpec) -> Running:
        if self.failure:
            raise LaunchFailed(self.failure)
        self.launched.append(spec)
        pid = 100 + len(self.launched)
        self.alive.add(pid)
        return Running(pid=pid, start_time=pid, session=pid)

    def crash(self, *, leaves_engine_core: bool = False) -> None:
        if leaves_engine_core:
            self.leftover |= self.alive
        self.alive.clear()

    def is_alive(self, running: Running) -> bool:
        return running.pid in self.alive

    def is_gone(self, running: Running) -> bool:
        return running.pid not in self.alive | self.leftover

    def terminate(self, running: Running) -> None:
        self.signals.append(("term", running.pid))
        if not self.ignores_sigterm:
            self.alive.discard(running.pid)

    def kill(self, running: Running) -> None:
        self.signals.append(("kill", running.pid))
        self.alive.discard(running.pid)
        self.leftover.discard(running.pid)

    def exit_status(self, running: Running) -> int | None:
        return self.status

    def close(self) -> None:
        pass


class FakeEngine(EngineClient):
    """What it answers is what the test sets. It is its own client."""

    def __init__(self) -> None:
        self.failure = ""
        self.current = IDLE
        self.logprobs = [[-1.0, -2.0, -3.0]]
        self.answer = "Paris"
        self.tally = None
        self.num_asked = 0
        self.num_warmed = 0
        self.turns: list[str] = []
        self.cannot_wake = ""
        self.counts_with: PromptCounter | None = None
        self.miscounts_by = 0

    def one_token(self, *, timeout_s: float) -> None:
        self.num_asked += 1
        if self.failure:
            raise EngineFailed(self.failure)

    def warm_logprobs(self, *, timeout_s: float) -> None:
        self.num_warmed += 1

    def sleep(self, *, timeout_s: float) -> None:
        self.turns.append("sleep")

    def wake_up(self, *, timeout_s: float) -> None:
        self.turns.append("wake up")
        if self.cannot_wake:
            raise EngineFailed(self.cannot_wake)

    def max_model_len(self, *, timeout_s: float) -> int:
        return 2048

    def num_tokens(self, sample: dict[str, Any], *, timeout_s: float) -> int:
        """As `counts_with` counts it, and `miscounts_by` more where there are messages."""
        assert self.counts_with is not None
        if "messages" in sample:
            return self.counts_with.chat(sample) + self.miscounts_by
        return self.counts_with.prompts(sample)[0]

    def load(self, *, timeout_s: float) -> EngineLoad:
        if self.failure == "no metrics":
            raise EngineFailed(self.failure)
        return self.current

    def force(self, golden: dict[str, Any], *, timeout_s: float) -> ForcedAnswer:
        return ForcedAnswer(logprobs=self.logprobs[golden.get("number", 0)], text=self.answer)


class FakeLink:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str, str]] = []
        self.digests: list[str] = []
        self.tokenisers: dict[str, bytes] = {}
        self.facts: dict[str, Any] = {}
        self.references: dict[ReferenceKey, list[list[float]]] = {}
        self.rows: list[Desired] = []
        self.counts: list[Count] = []
        self.beats: list[Beat] = []
        self.num_fleet_looks = 0
        self.num_fetched_revocations = 0
        self.asked_logs: list[str] = []
        self.logs: dict[str, str] = {}
        self.copies = NodeCopies(copies=[], needed_uris=[])
        self.copy_moves: list[tuple[int, str, str, str]] = []
        self.copy_notes: list[tuple[int, str, int, int]] = []
        self.uses: list[tuple[int, str]] = []
        self.evicted: list[int] = []
        self.is_away = False
        self.is_news = False
        self.num_polls = 0

    def has_news(self) -> bool:
        had, self.is_news = self.is_news, False
        return had and not self.is_away

    def poll(self) -> list[Desired] | None:
        self.num_polls += 1
        return None if self.is_away else [row for row in self.rows if row.state != ReplicaState.STOPPED]

    def move(self, replica_id: str, *, expected: ReplicaState, to: ReplicaState, reason: str = "", **changes: Any) -> None:
        self.facts |= changes
        self.moves.append((expected, to, reason))
        known = {name: value for name, value in changes.items() if name in Desired.__dataclass_fields__}
        self.rows = [replace(row, state=to, **known) if row.replica_id == replica_id else row for row in self.rows]

    def note(self, _replica_id: str, _state: ReplicaState, reason: str) -> None:
        self.moves.append(("note", "note", reason))

    def record_tokeniser(self, digest: str, content: bytes) -> None:
        self.tokenisers[digest] = content

    def poll_copies(self) -> NodeCopies | None:
        return None if self.is_away else self.copies

    def move_copy(self, version_id: int, *, expected: CopyState, to: CopyState, reason: str = "", **changes: Any) -> None:
        self.copy_moves.append((version_id, expected, to, reason))
        is_final = bool(changes.get("is_final", False))
        rows = [
            replace(row, state=to, is_final=is_final) if row.version_id == version_id else row for row in self.copies.copies
        ]
        self.copies = replace(self.copies, copies=rows)

    def note_copy(self, version_id: int, progress: str, done_bytes: int, total_bytes: int) -> None:
        self.copy_notes.append((version_id, progress, done_bytes, total_bytes))

    def record_use(self, version_id: int, *, size_bytes: int, digest: str) -> None:
        self.uses.append((version_id, digest))

    def record_evicted(self, version_ids: list[int], _reason: str) -> None:
        self.evicted += version_ids
        rows = [row for row in self.copies.copies if row.version_id not in version_ids]
        self.copies = replace(self.copies, copies=rows)

    def record_digest(self, _version_id: int, digest: str) -> None:
        self.digests.append(digest)

    def reference(self, key: ReferenceKey) -> list[list[float]] | None:
        return self.references.get(key)

    def record_reference(self, key: ReferenceKey, logprobs: list[list[float]], _replica_id: str) -> list[list[float]]:
        return self.references.setdefault(key, logprobs)

    def newest_change_of(self, _replica_id: str) -> int:
        return 7

    def count(self, count: Count) -> bool:
        if not self.is_away:
            self.counts.append(count)
        return not self.is_away

    def beat(self, beat: Beat) -> None:
        self.beats.append(beat)

    def look_after_fleet(self) -> None:
        self.num_fleet_looks += 1

    def fetch_revocations(self, revocations: Revocations) -> None:
        self.num_fetched_revocations += 1

    def tell_logs(self, tail: Callable[[str], str]) -> None:
        self.logs |= {replica: tail(replica) for replica in self.asked_logs}

    @property
    def states(self) -> list[str]:
        return [str(to) for _, to, _ in self.moves if to != "note"]

    @property
    def last_reason(self) -> str:
        return self.moves[-1][2]


def desired(**changes: Any) -> Desired:
    base = Desired(
        replica_id="rep-1",
        state=ReplicaState.REQUESTED,
        is_wanted=True,
        epoch=0,
        url="",
        served_name="m",
        max_in_flight=4,
        version_id=1,
        weights_uri="/w",
        weights_digest="",
        engine_environment="vllm-cpu-1",
        dtype="float32",
    )
    return replace(base, **changes)


@dataclass
class Workshop:
    """All the twins, and the Tools made of them."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    link: FakeLink = field(default_factory=FakeLink)
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    engine: FakeEngine = field(default_factory=FakeEngine)
    jobs: Any = field(default_factory=NowJobs)
    settings: NodeSettings = field(default_factory=NodeSettings)
    stage: Callable[[Any, Job[Staged]], Staged] = lambda _desired, _job: Staged(path=Path("/w"), digest="d1")
    bundle: TokeniserBundle | None = None
    kind: EngineKind = EngineKind.CPU
    acknowledged: list[tuple[int, float]] = field(default_factory=list)

    def tools(self) -> Tools:
        home = Home(self.folder)

        def wait_for_gateways(change_id: int, timeout_s: float) -> bool:
            self.acknowledged.append((change_id, timeout_s))
            return True

        return Tools(
            settings=self.settings,
            clock=self.clock,
            link=self.link,  # type: ignore[arg-type]  # a twin
            jobs=self.jobs,
            files=NodeFiles(home, "here"),
            sockets=home.run,
            logs=home.logs,
            engine_cache=home.folder("engine-cache"),
            tag=f"{home.installation_id}/here",
            zone="north",
            address="",
            revocations=Revocations(home.tls),
            launcher=lambda _kind: self.launcher,
            own_sessions=set,
            find_environment=lambda name: EngineEnvironment(name=name, folder=self.folder, kind=self.kind),
            installed_environments=lambda: ["vllm-cpu-1"],
            disk=WeightsDisk(home.weights, home.node, self.settings.disk, free_bytes=lambda _path: 10**15),
            stage=lambda wanted, job: self.stage(wanted, job),
            client=lambda _url, _model: self.engine,
            machine_kind=lambda _kind: "cpu-test",
            read_tokeniser=lambda _desired: self.bundle,
            wait_for_gateways=wait_for_gateways,
        )
