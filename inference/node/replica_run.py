"""One replica of this node, from requested to stopped. The loop calls `step`; slow work is a job that is asked for later.

Two rules keep it right. A move is told (`ControlLink.move`) at the moment it happens here, so the registry follows this
object and not the other way round. And a replica never goes on from `failed`, nor is it `stopped`, before the last
process of its engine is gone (`_ending`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from inference.engines.client import EngineClient
from inference.engines.speculation import uris_of
from inference.models import TRANSITIONS, ReplicaState
from inference.node import probes
from inference.node.backoff import Backoff
from inference.node.counting import Counting
from inference.node.engine_process import EngineProcess, end_of, launch, reference_key, socket_of
from inference.node.golden import Certificate, GoldenMismatch, compare
from inference.node.jobs import Job
from inference.node.outcomes import outcome_of
from inference.node.serving_facts import OwnCounter, own_counter
from inference.node.standby import Standby, Turn, standby_of
from inference.node.tools import Tools
from inference.node.watchdog import Watchdog
from inference.node.weight_files import Staged, bytes_below
from inference.services.node import Desired
from inference.services.replicas import HELD

log = structlog.get_logger(__name__)
_S = ReplicaState
NOTE_EVERY_S = 1.0
WARM_REASON = "certified, kept out of rotation"
# Beyond the engine's own --shutdown-timeout, before its session is killed.
TERM_MARGIN_S = 5.0


class ReplicaRun:
    def __init__(self, tools: Tools, desired: Desired, *, is_held: bool = False) -> None:
        self.tools, self.desired = tools, desired
        self.state = ReplicaState(desired.state)
        self.is_held = is_held
        """It failed in a way that trying again cannot mend; somebody has to act."""
        self.process: EngineProcess | None = None
        self.watchdog: Watchdog | None = None
        self.backoff = Backoff(
            first_s=tools.settings.backoff_first_s,
            ceiling_s=tools.settings.backoff_ceiling_s,
            reset_after_s=tools.settings.backoff_reset_s,
        )
        self.counting = Counting(tools, desired.replica_id)
        self._counter: OwnCounter | None = None
        self._job: Job[Any] | None = None
        self._launch: Job[EngineProcess] | None = None
        self._ending: Job[None] | None = None
        self._turning: Job[None] | None = None
        self._standby = Standby()
        self._stop_reason: str | None = None
        self._retry_at_s = 0.0
        self._ready_since_s: float | None = None
        self._next_note_s = 0.0
        self._next_look_s = 0.0

    @property
    def id(self) -> str:
        return self.desired.replica_id

    @property
    def is_over(self) -> bool:
        return self.state is _S.STOPPED

    @property
    def place(self) -> tuple[object, ...]:
        """Where it is: after a step that leaves it there, the next one waits for something."""
        return self.state, self.process, self._job, self._ending, self._turning

    def step(self, now_s: float) -> None:
        if self._ending is not None:
            if self._ending.is_done:
                self._ended()
        elif self.process is not None and not self.process.is_alive():
            self._fail(self.process.crash_reason(), now_s)
        else:
            _STEPS[self.state](self, now_s)

    # Steps, one a state.

    def _step_requested(self, now_s: float) -> None:
        if not self.desired.is_wanted:
            return self._move(_S.STOPPED, "not wanted any more")
        self._move(_S.STAGING, "looking for the weights")
        desired = self.desired
        self._start_job("stage", lambda job: self._stage(desired, job))
        return None

    def _stage(self, desired: Desired, job: Job[Staged]) -> Staged:
        self.tools.disk.pin(self.id, uris_of(desired.weights_uri, desired.engine_args))
        return self.tools.stage(desired, job)

    def _step_staging(self, now_s: float) -> None:
        if not self.desired.is_wanted:
            self._drop_job()
            return self._move(_S.STOPPED, "not wanted any more")
        if self._job is None:
            return self._fail("staging was cut off", now_s)
        if not self._job.is_done:
            return self._note(self._job.progress, now_s)
        staged = self._outcome(now_s)
        if staged is not None:
            self.tools.link.record_digest(self.desired.version_id, staged.digest)
            self.tools.link.record_use(self.desired.version_id, size_bytes=bytes_below(staged.path), digest=staged.digest)
            self.desired = replace(self.desired, weights_digest=staged.digest)
            self._start_engine(staged)
        return None

    def _start_engine(self, staged: Staged) -> None:
        url = f"unix:{socket_of(self.tools, self.id)}"
        self.desired = replace(self.desired, epoch=self.desired.epoch + 1, url=url)
        self._move(_S.STARTING, "starting the engine", epoch=self.desired.epoch, url=url)
        self.counting.begin(self.desired.epoch)
        desired = self.desired
        self._start_job("launch", lambda _job: launch(self.tools, desired, weights=staged.path, epoch=desired.epoch))
        self._launch = self._job

    def _step_starting(self, now_s: float) -> None:
        if self.process is None:
            if self._job is None:
                return self._fail("the start was cut off", now_s)
            if self._job.is_done:
                self._launch = None
                self.process = self._outcome(now_s)
            return None
        if not self.desired.is_wanted:
            return self._stop("not wanted any more")
        if self._job is None:
            limit_s = self.tools.settings.start_limit_s
            self._start_job("probe", lambda job: probes.come_up(job, self._client, self._own_counter, limit_s=limit_s))
        elif self._job.is_done:
            self._counter = self._outcome(now_s)
            if self._counter is not None:
                self._move(_S.CERTIFYING, "checking its answers")
        return None

    def _step_certifying(self, now_s: float) -> None:
        if not self.desired.is_wanted:
            return self._stop("not wanted any more")
        if self._job is None:
            settings, prompts, counter = self.tools.settings, self.desired.golden_prompts, self._own_counter
            reference = self.tools.link.reference(reference_key(self.tools, self.desired)) if prompts else None
            self._start_job(
                "certify",
                lambda job: probes.certificate(job, self._client, prompts, reference, counter=counter, settings=settings),
            )
        elif self._job.is_done:
            certificate = self._outcome(now_s)
            if certificate is not None:
                self._certified(certificate, now_s)
        return None

    def _certified(self, certificate: Certificate, now_s: float) -> None:
        if self.desired.golden_prompts and certificate.difference_nats is None:
            kept = self.tools.link.record_reference(reference_key(self.tools, self.desired), certificate.logprobs, self.id)
            try:
                compare(certificate.logprobs, kept, self.tools.settings.golden_tolerance_nats)
            except GoldenMismatch as mismatch:
                return self._fail(str(mismatch), now_s, is_final=True)
        log.info("replica_certified", replica=self.id, difference_nats=certificate.difference_nats)
        self._serve(now_s, is_canary_due=False)
        facts = certificate.facts
        if facts.digest:
            self.tools.link.record_tokeniser(facts.digest, facts.tokeniser)
        to, reason = (_S.WARM, WARM_REASON) if self.desired.is_standby else (_S.READY, "")
        return self._move(to, reason, tokeniser=facts.digest, max_model_len=facts.max_model_len)

    def _serve(self, now_s: float, *, is_canary_due: bool) -> None:
        self.watchdog = Watchdog(self.tools.settings.watchdog, now_s=now_s, is_canary_due=is_canary_due)
        self._ready_since_s = self._next_look_s = now_s
        self._standby = standby_of(self.tools, self.desired.engine_environment)

    def _step_warm(self, now_s: float) -> None:
        if not self.desired.is_wanted:
            return self._stop("not wanted any more")
        turn = self._standby.turn(is_to_serve=not self.desired.is_standby)
        if turn is not None or self._turning is not None:
            return self._turn(turn, now_s)
        if not self.desired.is_standby:
            return self._move(_S.READY, "")
        return self._watch(now_s)

    def _turn(self, turn: Turn | None, now_s: float) -> None:
        """What was begun is waited for first."""
        if self._turning is None:
            assert turn is not None
            self._drop_job()
            self._turning = self.tools.jobs.start(f"{self.id}-turn", lambda _job: turn(self._client()))
        elif self._turning.is_done:
            self._job, self._turning = self._turning, None
            if self._outcome(now_s, default=True):
                self._standby.turned()

    def _step_ready(self, now_s: float) -> None:
        if not self.desired.is_wanted or self.desired.is_standby:
            self._drop_job()
            return self._move(_S.DRAINING, "finishing its requests")
        return self._watch(now_s)

    def _watch(self, now_s: float) -> None:
        assert self.watchdog is not None, "a ready or warm replica is watched"
        if self._job is None and now_s >= self._next_look_s:
            sends_canary = self.watchdog.is_canary_due(now_s=now_s) and not self._standby.is_asleep
            limit_s = self.tools.settings.watchdog.canary_limit_s
            self._start_job("look", lambda _job: probes.look(self._client, sends_canary=sends_canary, canary_limit_s=limit_s))
        elif self._job is not None and self._job.is_done:
            seen: probes.Look = self._job.result()
            self._job = None
            self._next_look_s = now_s + self.tools.settings.scrape_every_s
            self.watchdog.observe(seen.load, now_s=now_s)
            self.counting.seen(seen, now_s=now_s)
            if seen.canary is not None:
                self.watchdog.canary(seen.canary, now_s=now_s)
        hung = self.watchdog.verdict(now_s=now_s)
        if hung is not None:
            self._fail(hung.reason, now_s)

    def _step_draining(self, now_s: float) -> None:
        settings = self.tools.settings
        if self.process is None:
            return self._move(_S.STOPPED, "drained")
        if self._job is None:
            change_id = self.tools.link.newest_change_of(self.id)

            def wait_for_gateways() -> bool:
                return not change_id or self.tools.wait_for_gateways(change_id, settings.drain_ack_s)

            self._start_job(
                "drain",
                lambda job: probes.drain(
                    job,
                    self._client,
                    wait_for_gateways=wait_for_gateways,
                    limit_s=settings.drain_ack_s + settings.drain_limit_s,
                ),
            )
        elif self._job.is_done:
            drained: probes.Drained = self._job.result()
            self.counting.last(drained.last)
            if drained.is_idle and self.desired.is_wanted:
                self._drop_job()
                self._serve(now_s, is_canary_due=False)
                return self._move(_S.WARM, WARM_REASON)
            self._stop("drained" if drained.is_idle else f"stopped with requests running after {settings.drain_limit_s:g} s")
        return None

    def _step_failed(self, now_s: float) -> None:
        if not self.desired.is_wanted:
            self._move(_S.STOPPED, "not wanted any more")
        elif not self.is_held and now_s >= self._retry_at_s:
            self._move(_S.REQUESTED, "trying again")

    # What several states share.

    def _move(self, to: ReplicaState, reason: str, **changes: Any) -> None:
        assert to in TRANSITIONS[self.state], f"{self.state} to {to}"
        log.info("replica_moved", replica=self.id, before=self.state, after=to, reason=reason)
        before, self.state = self.state, to
        self.desired = replace(self.desired, state=to)
        self.tools.link.move(self.id, expected=before, to=to, reason=reason, **changes)

    def _note(self, progress: str, now_s: float) -> None:
        if progress and now_s >= self._next_note_s:
            self._next_note_s = now_s + NOTE_EVERY_S
            self.tools.link.note(self.id, self.state, progress)

    def _start_job(self, name: str, work: Callable[[Job[Any]], Any]) -> None:
        self._job = self.tools.jobs.start(f"{self.id}-{name}", work)

    def _drop_job(self) -> None:
        if self._job is not None:
            self._job.cancel()
        self._job = None

    def _outcome(self, now_s: float, default: Any = None) -> Any:
        """The finished job's result (`default` for None); None after a failure, which is then told."""
        job, self._job = self._job, None
        assert job is not None
        outcome = outcome_of(job, replica=self.id, state=self.state)
        if outcome.failure:
            self._fail(outcome.failure, now_s, is_final=outcome.is_final)
            return None
        return default if outcome.result is None else outcome.result

    def _fail(self, reason: str, now_s: float, *, is_final: bool = False) -> None:
        self._drop_job()
        self.is_held = is_final
        self._retry_at_s = self.backoff.failed(now_s=now_s, ready_since_s=self._ready_since_s)
        self._ready_since_s = self.watchdog = self._turning = None
        self._move(_S.FAILED, f"{reason}{HELD if is_final else ''}")
        self._end_process(graceful_s=0.0)

    def give_up(self, reason: str, now_s: float) -> None:
        """After a fault of ours: hold it, until somebody acts."""
        if _S.FAILED in TRANSITIONS[self.state]:
            self._fail(reason, now_s, is_final=True)
        self.is_held = True

    def _stop(self, reason: str) -> None:
        self._drop_job()
        self._stop_reason = reason
        self._end_process(graceful_s=self.tools.settings.engine.shutdown_timeout_s + TERM_MARGIN_S)

    def _end_process(self, *, graceful_s: float) -> None:
        process, launch, self._launch = self.process, self._launch, None
        if process is not None or launch is not None:
            self._ending = self.tools.jobs.start(f"{self.id}-end", lambda _job: end_of(process, launch, graceful_s=graceful_s))

    def _ended(self) -> None:
        assert self._ending is not None
        self._ending.result()
        self._ending = self.process = None
        if self._stop_reason is not None:
            reason, self._stop_reason = self._stop_reason, None
            self._move(_S.STOPPED, reason)

    def _own_counter(self) -> OwnCounter:
        """Read once, while its engine loads; after an agent's restart when it is certified."""
        return self._counter or own_counter(self.tools.read_tokeniser(self.desired))

    def _client(self) -> EngineClient:
        client = self.tools.client(self.desired.url, self.desired.served_name)
        client.tally = self.counting.own
        return client

    # When the world is not as this object left it.

    def adopt(self, process: EngineProcess, now_s: float) -> None:
        """After the agent's restart: its engine runs on. A ready one is asked for a token at once (the watchdog's canary)."""
        self.process = process
        self.counting.go_on(process.run.epoch)
        if self.state in {_S.READY, _S.WARM}:
            self._serve(now_s, is_canary_due=True)
        log.info("engine_adopted", replica=self.id, pid=process.run.pid, state=self.state)

    def lost(self, reason: str, now_s: float) -> None:
        """After the agent's restart: whatever was under way is not any more."""
        if self.state not in {_S.REQUESTED, _S.FAILED}:
            self._fail(reason, now_s)

    def sync(self, row: Desired, now_s: float) -> None:
        """Take over what the registry says now."""
        if row.state != self.state:
            self._overruled(ReplicaState(row.state), now_s)
        kept_digest = self.desired.weights_digest or row.weights_digest
        self.desired = replace(row, state=self.state, epoch=max(row.epoch, self.desired.epoch), url=self.desired.url or row.url)
        self.desired = replace(self.desired, weights_digest=kept_digest)

    def _overruled(self, state: ReplicaState, now_s: float) -> None:
        log.warning("replica_moved_by_another", replica=self.id, here=self.state, there=state)
        self.state = state
        self.desired = replace(self.desired, state=state)
        if state in {_S.REQUESTED, _S.FAILED}:
            self._drop_job()
            self.is_held = False
            self.backoff.forget()
            self._retry_at_s = now_s
            if self._ending is None:
                self._end_process(graceful_s=0.0)
        else:
            self._fail(f"somebody moved it to {state}", now_s)

    def abandon(self) -> bool:
        """Its row is gone. True once nothing of it is left here."""
        self._drop_job()
        if self._ending is None:
            self._end_process(graceful_s=0.0)
        if self._ending is not None and self._ending.is_done:
            self._ending = self.process = None
        return self._ending is None

    def halt(self) -> Job[Any] | None:
        """The agent stops, its engine does not. Returns the job under way, which was asked to end early."""
        job = self._job
        self._drop_job()
        return job


_STEPS: dict[ReplicaState, Callable[[ReplicaRun, float], None]] = {
    _S.REQUESTED: ReplicaRun._step_requested,
    _S.STAGING: ReplicaRun._step_staging,
    _S.STARTING: ReplicaRun._step_starting,
    _S.CERTIFYING: ReplicaRun._step_certifying,
    _S.WARM: ReplicaRun._step_warm,
    _S.READY: ReplicaRun._step_ready,
    _S.DRAINING: ReplicaRun._step_draining,
    _S.FAILED: ReplicaRun._step_failed,
    _S.STOPPED: lambda _run, _now_s: None,
}
