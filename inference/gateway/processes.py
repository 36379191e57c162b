"""The parent of several gateway processes: it owns a listening socket a place, and keeps a worker alive in each.

    SIGTERM, SIGINT   drain all workers, then end (SIGINT again: kill them)
    SIGHUP            rolling restart: in each place in turn, start a new worker, wait until it is ready, drain the old one
    a worker dies     another one is started, after a pause that doubles while it dies young

Beside the workers run companions (the dispatchers): started before them, renewed after them, ended when the last worker
has. The parent serves nothing and knows neither keys nor requests. Should it be killed, its workers notice, drain and end,
and so do the companions.
"""

import contextlib
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import structlog

from headway import env
from inference.gateway.worker_link import ParentEnd
from inference.gateway.worker_metrics import SummedMetrics

log = structlog.get_logger(__name__)

LOOK_S = 0.1
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 10.0
YOUNG_S = 10.0
# Over the drain's limit: for error events to leave and the journal to be carried to the ledger.
END_GRACE_S = 15.0


@dataclass(frozen=True)
class ProcessTunables:
    ready_s: float = 60.0
    """Rolling restart: how long a new worker may take until it is ready; else it is given up and the old one stays."""
    drain_s: float = 25.0
    """How long a worker's running requests may go on; it is killed 15 s later."""

    @classmethod
    def from_env(cls, *, drain_s: float) -> "ProcessTunables":
        return cls(ready_s=env.seconds("HEADWAY_WORKER_READY_S", cls.ready_s, at_least=1.0), drain_s=drain_s)


class Worker:
    """One worker or companion. `index` is its place's: two workers have the same one during a rolling restart."""

    def __init__(
        self, number: int, index: int, place: "Place", process: "subprocess.Popen[bytes]", channel: socket.socket
    ) -> None:
        self.number, self.index, self.place, self.process = number, index, place, process
        self.end = ParentEnd(channel)
        self.started_s = time.monotonic()
        self.is_listening = self.is_ready = False
        self.kill_at_s: float | None = None

    @property
    def is_ending(self) -> bool:
        return self.kill_at_s is not None

    def stop(self, limit_s: float) -> None:
        if self.kill_at_s is None and self.process.poll() is None:
            self.kill_at_s = time.monotonic() + limit_s
            self.process.terminate()


@dataclass
class Place:
    worker: Worker | None = None
    start_at_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Parent:
    """One place for each socket; `command(place, listening_fd, channel_fd)` is what a worker is started with, and each of
    `companions` is the command of one, `(channel_fd)`.
    """

    def __init__(
        self,
        *,
        listening: Sequence[socket.socket],
        command: Callable[[int, int, int], Sequence[str]],
        metrics: SummedMetrics,
        tunables: ProcessTunables,
        on_listening: Callable[[], None],
        companions: Sequence[Callable[[int], Sequence[str]]] = (),
    ) -> None:
        self._places = [Place() for _ in listening]
        self._companions = [(command, Place()) for command in companions]
        self._beside: list[Worker] = []  # companions that run
        self._listening, self._command, self._metrics = listening, command, metrics
        self._tunables, self._on_listening = tunables, on_listening
        self._selector = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        self._next: Worker | None = None  # takes its place over when it is ready
        self._to_renew: deque[int] = deque()
        self._beside_to_renew: deque[Place] = deque()
        self._num_started = 0
        self.num_restarts = 0
        self._was_ever_ready = self._has_told = False
        self._is_ending = False
        self._exit_code = 0
        self._signals: deque[int] = deque()

    @property
    def num_running(self) -> int:
        return sum(worker.is_listening for worker in list(self._workers))

    def run(self) -> int:
        """Blocks until all workers have ended; an exit code."""
        with self._catching_signals():
            while not (self._is_ending and not self._workers and not self._beside):
                self._handle_signals()
                self._look_after_companions()
                if not self._is_ending:
                    self._fill_places()
                    self._renew()
                self._hear()
                self._reap()
                self._kill_late_ones()
        self._selector.close()
        return self._exit_code

    # -- signals

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """A signal ends the wait at once: Python writes it to the socket that is waited on."""
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)

        def note(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.signal(number, note) for number in caught}
        old_fd = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            woken.close()
            waking.close()

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            if number == signal.SIGHUP and not self._is_ending and not self._to_renew and self._next is None:
                log.info("gateway_rolling_restart", processes=len(self._places))
                self._to_renew.extend(range(len(self._places)))
                self._beside_to_renew = deque(place for _, place in self._companions)
            elif number == signal.SIGINT and self._is_ending:
                for worker in [*self._workers, *self._beside]:
                    worker.process.kill()
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._end_all(0)

    def _end_all(self, exit_code: int) -> None:
        if not self._is_ending:
            self._is_ending, self._exit_code = True, exit_code
            # Not before: until the workers stop accepting, nobody is refused.
            for worker in self._workers:
                self._stop(worker)
            for listening in self._listening:
                listening.close()

    def _stop(self, worker: Worker) -> None:
        worker.stop(self._tunables.drain_s + END_GRACE_S)

    # -- workers

    def _start(self, index: int) -> Worker:
        listening = self._listening[index].fileno()
        worker = self._spawn(index, self._places[index], lambda channel: self._command(index, listening, channel), (listening,))
        self._workers.append(worker)
        log.info("gateway_worker_started", pid=worker.process.pid, place=index)
        return worker

    def _spawn(
        self, index: int, place: Place, command: Callable[[int], Sequence[str]], descriptors: tuple[int, ...] = ()
    ) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*command(theirs.fileno())], pass_fds=(*descriptors, theirs.fileno()), stdin=subprocess.DEVNULL
            )
        self._num_started += 1
        worker = Worker(self._num_started, index, place, process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _look_after_companions(self) -> None:
        """Running until the last worker has ended."""
        now_s = time.monotonic()
        for index, (command, place) in enumerate(self._companions):
            if self._is_ending:
                if place.worker is not None and not self._workers:
                    place.worker.stop(END_GRACE_S)
            elif place.worker is None and now_s >= place.start_at_s:
                place.worker = self._spawn(index, place, command)
                self._beside.append(place.worker)
                log.info("gateway_companion_started", pid=place.worker.process.pid)
        if not self._is_ending and self._beside_to_renew and self._are_companions_up():
            renewed = self._beside_to_renew.popleft().worker
            assert renewed is not None, "all are up"
            renewed.stop(END_GRACE_S)

    def _are_companions_up(self) -> bool:
        """Rolling restart: one of them leads, and may only go while another is there that can take over."""
        beside = [place.worker for _, place in self._companions]
        return all(worker is not None and worker.is_listening and not worker.is_ending for worker in beside)

    def _hear(self) -> None:
        for key, _ in self._selector.select(LOOK_S):
            if isinstance(key.data, Worker):
                self._hear_worker(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(4096)  # type: ignore[union-attr]  # the socket that signals wake us with

    def _hear_worker(self, worker: Worker) -> None:
        said = worker.end.read()
        if said is None:
            self._selector.unregister(worker.end.channel)
            worker.end.close()
            return
        for message in said:
            worker.is_listening |= message.is_listening
            worker.is_ready |= message.is_ready
            self._was_ever_ready |= message.is_listening and worker in self._workers
            if message.metrics is not None:
                self._metrics.update(worker.number, message.metrics)
        if not self._has_told and all(place.worker and place.worker.is_listening for place in self._places):
            self._has_told = True
            self._on_listening()

    def _reap(self) -> None:
        for worker in [worker for worker in [*self._workers, *self._beside] if worker.process.poll() is not None]:
            if worker.end.channel.fileno() >= 0:
                self._hear_worker(worker)  # its last words
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        code, lived_s = worker.process.returncode, time.monotonic() - worker.started_s
        is_companion = worker in self._beside
        (self._beside if is_companion else self._workers).remove(worker)
        self._metrics.ended(worker.number)
        if worker.end.channel.fileno() >= 0:
            self._selector.unregister(worker.end.channel)
            worker.end.close()
        if worker.is_ending:
            log.info("gateway_worker_ended", pid=worker.process.pid, place=worker.index, code=code)
        else:
            log.error("gateway_worker_died", pid=worker.process.pid, place=worker.index, code=code, lived_s=round(lived_s, 1))
        if worker is self._next:
            self._give_up_renewal("it ended before it was ready")
        place = worker.place
        if place.worker is not worker:
            return
        place.worker = None
        if not is_companion and not self._was_ever_ready and code == 1:
            self._end_all(1)  # what it said on stderr is true of all
        elif not self._is_ending:
            self.num_restarts += not worker.is_ending
            place.pause_s = FIRST_PAUSE_S if lived_s > YOUNG_S else min(place.pause_s * 2, MAX_PAUSE_S)
            place.start_at_s = time.monotonic() + (0.0 if lived_s > YOUNG_S else place.pause_s)

    def _kill_late_ones(self) -> None:
        now_s = time.monotonic()
        for worker in [*self._workers, *self._beside]:
            if worker.kill_at_s is not None and now_s > worker.kill_at_s:
                log.error("gateway_worker_killed", pid=worker.process.pid, reason="it did not end in time")
                worker.kill_at_s = float("inf")
                worker.process.kill()

    def _fill_places(self) -> None:
        for index, place in enumerate(self._places):
            if place.worker is None and time.monotonic() >= place.start_at_s:
                place.worker = self._start(index)

    # -- the rolling restart

    def _renew(self) -> None:
        """One place at a time: the old worker has ended before the next place's turn."""
        if self._next is not None:
            self._watch_next(self._next)
        elif self._to_renew and not any(worker.is_ending for worker in self._workers):
            self._next = self._start(self._to_renew.popleft())

    def _watch_next(self, worker: Worker) -> None:
        if worker.is_ready:
            place = worker.place
            old, place.worker, self._next = place.worker, worker, None
            if old is not None:
                self._stop(old)
        elif time.monotonic() - worker.started_s > self._tunables.ready_s:
            worker.stop(END_GRACE_S)
            self._give_up_renewal(f"it was not ready after {self._tunables.ready_s:g} s")

    def _give_up_renewal(self, reason: str) -> None:
        self._next = None
        self._to_renew.clear()
        log.error("gateway_rolling_restart_failed", reason=f"a new worker was given up, the old ones stay: {reason}")
