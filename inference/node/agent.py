"""The loop: make this machine's engines match the Replica rows that name this node (DESIGN §2)."""

import threading
from collections.abc import Callable
from typing import Any

import structlog

from headway.clock import Clock
from inference.engines.vllm import EngineLoad
from inference.models import ReplicaState
from inference.node.adoption import kill_leftovers, why_not_adopt
from inference.node.beating import Loads, Scraped
from inference.node.copies import Copies
from inference.node.engine_log import last_lines, rotate
from inference.node.engine_process import found
from inference.node.jobs import Job
from inference.node.machine import accelerator, this_machine
from inference.node.node_files import Remembered
from inference.node.replica_run import ReplicaRun
from inference.node.tools import Tools
from inference.services.heartbeats import Beat, beat_every_s
from inference.services.node import Desired

log = structlog.get_logger(__name__)
SERVED_STATES = (ReplicaState.READY, ReplicaState.WARM)
TICK_S = 0.2
POLL_EVERY_S = 1.0
# One look-up by primary key: whether a poll before its time is worth while.
NEWS_EVERY_S = 0.2
# From asked for to a running job, say; a replica that failed waits for its time.
MAX_STEPS_A_TICK = 6
POLL_COPIES_EVERY_S = 2.0
ROTATE_EVERY_S = 30.0
SAY_DISK_EVERY_S = 60.0
REVOCATIONS_EVERY_S = 2.0
# For children of staging jobs to be killed when the agent stops.
HALT_LIMIT_S = 5.0


class Agent:
    """`tick` does everything once; `run` calls it until told to stop."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.clock: Clock = tools.clock
        self.runs: dict[str, ReplicaRun] = {}
        self.copies = Copies(tools)
        self._abandoned: list[ReplicaRun] = []
        self._due_s: dict[str, float] = {}
        self._remembered: list[Remembered] = []
        self._loads = Loads()

    def start(self) -> None:
        """Find what an earlier agent left: keep the engines that match, kill every other process of this node."""
        self.tools.disk.clear_leftovers()
        remembered = self.tools.files.remembered()
        rows = self.tools.link.poll()
        if rows is None:
            rows = [entry.desired for entry in remembered.values() if entry.desired.state != ReplicaState.STOPPED]
        now_s = self.clock.monotonic_s()
        for row in rows:
            before = remembered.get(row.replica_id)
            is_held = before is not None and before.is_held and row.state == ReplicaState.FAILED
            self.runs[row.replica_id] = ReplicaRun(self.tools, row, is_held=is_held)
        self._settle(now_s)
        self._remember()

    def _settle(self, now_s: float) -> None:
        files = self.tools.files.read_runs()
        kept_sessions = self.tools.own_sessions()
        for replica_id, run in self.runs.items():
            file = files.get(replica_id)
            process = found(self.tools, run.desired, file) if file is not None else None
            reason = why_not_adopt(run.desired, file, is_alive=process is not None and process.is_alive())
            if reason or process is None:
                run.lost(reason, now_s)
            else:
                kept_sessions.add(process.run.session)
                run.adopt(process, now_s)
        kill_leftovers(self.tools.tag, kept_sessions=kept_sessions)
        for replica_id in files.keys() - {run.id for run in self.runs.values() if run.process is not None}:
            self.tools.files.forget_run(replica_id)

    def run(self, stop: threading.Event) -> None:
        """A job that ends is acted on at once; without one there is a tick every TICK_S."""
        finished = self.tools.jobs.finished
        while not stop.is_set():
            finished.clear()  # before the tick, which may start jobs that end during it
            self.tick()
            finished.wait(TICK_S)
        self.halt()

    def tick(self) -> None:
        now_s = self.clock.monotonic_s()
        if self._is_poll_due(now_s):
            rows = self.tools.link.poll()
            if rows is not None:
                self._sync(rows, now_s)
                self.tools.link.tell_logs(self._log_of)
        if self._is_due("poll copies", POLL_COPIES_EVERY_S, now_s):
            found = self.tools.link.poll_copies()
            if found is not None:
                self.copies.sync(found)
        if self._is_due("revocations", REVOCATIONS_EVERY_S, now_s):
            self._on_disk("revocations", lambda: self.tools.link.fetch_revocations(self.tools.revocations))
        if self._is_due("beat", beat_every_s(), now_s):
            self._beat(now_s)
        for run in self.runs.values():
            self._step(run, now_s)
        self.runs = {run.id: run for run in self.runs.values() if not run.is_over}
        self._abandoned = [run for run in self._abandoned if not run.abandon()]
        self.tools.disk.keep_pins({*self.runs, *(run.id for run in self._abandoned)})
        self.copies.step(now_s)
        self._remember()
        if self._is_due("rotate", ROTATE_EVERY_S, now_s):
            self._rotate_logs()

    def loads(self) -> dict[str, EngineLoad]:
        """The last scrape of each ready engine; from any thread."""
        return {seen.replica: seen.load for seen in self._scraped()}

    def _scraped(self) -> list[Scraped]:
        watched = [(run.id, run.desired.epoch, run.watchdog) for run in list(self.runs.values()) if run.state in SERVED_STATES]
        return [Scraped(name, epoch, dog.load) for name, epoch, dog in watched if dog is not None and dog.load is not None]

    def _beat(self, now_s: float) -> None:
        """Say that we live, and look after the others."""
        tools, loads = self.tools, self._loads.of(self._scraped(), now_s=now_s)
        tools.link.beat(
            Beat(
                this_machine(),
                tools.zone,
                tools.settings.max_replicas,
                loads,
                tools.address,
                accelerator=accelerator(),
                environments=tools.installed_environments(),
            )
        )
        try:
            tools.link.look_after_fleet()
        except Exception:  # the fleet's trouble must not keep this machine's engines from being watched
            log.exception("fleet_sweep_failed")

    def _log_of(self, replica_id: str) -> str:
        return last_lines(self.tools.logs / f"{replica_id}.log")

    def _step(self, run: ReplicaRun, now_s: float) -> None:
        """As far as it gets without waiting. One replica's fault must not leave the others without a watchdog."""
        try:
            for _ in range(MAX_STEPS_A_TICK):
                before = run.place
                run.step(now_s)
                if run.place == before:
                    return
        except Exception as error:
            log.exception("replica_step_failed", replica=run.id, state=run.state)
            run.give_up(f"the node agent failed on it ({type(error).__name__}); see its log", now_s)

    def _is_poll_due(self, now_s: float) -> bool:
        """Once a second, and whenever something was published of a replica."""
        if self._is_due("news", NEWS_EVERY_S, now_s) and self.tools.link.has_news():
            self._due_s["poll"] = 0.0
        return self._is_due("poll", POLL_EVERY_S, now_s)

    def _is_due(self, what: str, every_s: float, now_s: float) -> bool:
        if now_s < self._due_s.get(what, 0.0):
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _sync(self, rows: list[Desired], now_s: float) -> None:
        for row in rows:
            run = self.runs.get(row.replica_id)
            if run is None:
                log.info("replica_found", replica=row.replica_id, state=row.state)
                run = self.runs[row.replica_id] = ReplicaRun(self.tools, row)
                run.lost("it has no engine on this node", now_s)
            else:
                run.sync(row, now_s)
        for replica_id in self.runs.keys() - {row.replica_id for row in rows}:
            log.warning("replica_gone", replica=replica_id)
            self._abandoned.append(self.runs.pop(replica_id))

    def _remember(self) -> None:
        """Write desired.json where something has changed."""
        now = [Remembered(desired=run.desired, is_held=run.is_held) for run in self.runs.values()]
        if now != self._remembered and self._on_disk("desired.json", lambda: self.tools.files.remember(now)):
            self._remembered = now

    def _rotate_logs(self) -> None:
        for run in self.runs.values():
            path = self.tools.logs / f"{run.id}.log"
            self._on_disk(path.name, lambda path=path: rotate(path, max_bytes=self.tools.settings.log_max_bytes))  # type: ignore[misc]

    def _on_disk(self, what: str, work: Callable[[], None]) -> bool:
        """Whether it was done. A disk that is full, or away, must not end the agent: somebody has to look after the engines."""
        try:
            work()
        except OSError as error:
            if self._is_due(f"say {what}", SAY_DISK_EVERY_S, self.clock.monotonic_s()):
                log.error("disk_trouble", what=what, reason=str(error))
            return False
        return True

    def halt(self) -> None:
        """Stop looking after the engines, which live on."""
        jobs: list[Job[Any]] = [job for job in (run.halt() for run in self.runs.values()) if job is not None]
        jobs += self.copies.halt()
        deadline_s = self.clock.monotonic_s() + HALT_LIMIT_S
        for job in jobs:
            job.wait(max(0.0, deadline_s - self.clock.monotonic_s()))
