"""What a node agent reads from and writes to the database, in plain values: the agent itself knows no rows."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction

from inference.engines.options import over
from inference.errors import IllegalTransition
from inference.models import ControlChange, GoldenReference, ModelVersion, Replica, ReplicaState
from inference.services.replicas import advance, take_down
from inference.services.tokenisers import keep_tokeniser


@dataclass(frozen=True)
class Desired:
    """One replica of this node as the registry has it."""

    replica_id: str
    state: str
    is_wanted: bool
    epoch: int
    url: str
    served_name: str
    max_in_flight: int
    version_id: int
    weights_uri: str
    weights_digest: str
    engine_environment: str
    dtype: str
    engine_args: list[str] = field(default_factory=list)
    golden_prompts: list[dict[str, Any]] = field(default_factory=list)
    is_standby: bool = False


def replicas_of(node: str) -> list[Desired]:
    """All that are not stopped, oldest first."""
    rows = Replica.objects.filter(node=node, version__isnull=False).exclude(state=ReplicaState.STOPPED)
    return [_desired(row) for row in rows.select_related("version", "pool").order_by("created_at", "id")]


def _desired(row: Replica) -> Desired:
    version = row.version
    assert version is not None, "a managed replica has a version"
    return Desired(
        replica_id=row.id,
        state=row.state,
        is_wanted=row.is_wanted,
        is_standby=row.is_standby,
        epoch=row.epoch,
        url=row.url,
        served_name=row.upstream_model,
        max_in_flight=row.pool.max_in_flight,
        version_id=version.pk,
        weights_uri=version.weights_uri,
        weights_digest=version.weights_digest,
        engine_environment=version.engine_environment,
        dtype=version.dtype,
        engine_args=over(version.engine_args, row.pool.engine_args),
        golden_prompts=list(version.golden_prompts),
    )


def set_reason(*, replica_id: str, state: ReplicaState, reason: str) -> None:
    """Say how far a replica is, while it stays in its state. Not published: gateways do not route by it."""
    Replica.objects.filter(pk=replica_id, state=state).update(reason=reason)


def newest_change_of(replica_id: str) -> int:
    """The id of the last thing the feed said about the replica; 0 if nothing."""
    newest = ControlChange.objects.filter(kind="replica", key=replica_id).order_by("-id").values_list("id", flat=True).first()
    return newest or 0


def mark_stopped(*, nodes: list[str], reason: str) -> None:
    """Their engines were stopped from outside: those that are wanted start again with the agent, the others are over."""
    for row in Replica.objects.filter(node__in=nodes).exclude(state__in=[ReplicaState.STOPPED, ReplicaState.REQUESTED]):
        state = ReplicaState(row.state)
        with contextlib.suppress(IllegalTransition):
            if state is not ReplicaState.FAILED:
                take_down(replica_id=row.id, expected=state, reason=reason)
            if not row.is_wanted:
                advance(replica_id=row.id, expected=ReplicaState.FAILED, to=ReplicaState.STOPPED, reason=reason)


def record_digest(*, version_id: int, digest: str) -> None:
    """Fill in a version's digest, once."""
    ModelVersion.objects.filter(pk=version_id, weights_digest="").update(weights_digest=digest)


def record_tokeniser(*, digest: str, content: bytes) -> None:
    keep_tokeniser(digest=digest, content=content)


@dataclass(frozen=True)
class ReferenceKey:
    """What log-probabilities may be compared across: the same version, engine, number format and kind of machine."""

    version_id: int
    engine_environment: str
    dtype: str
    machine_kind: str


def golden_reference(key: ReferenceKey) -> list[list[float]] | None:
    row = GoldenReference.objects.filter(**key.__dict__).first()
    return None if row is None else row.logprobs


def record_reference(key: ReferenceKey, *, logprobs: list[list[float]], replica_id: str) -> list[list[float]]:
    """Keep the first replica's; returns what is kept, which is another's if that was quicker."""
    try:
        with transaction.atomic():
            GoldenReference.objects.create(**key.__dict__, logprobs=logprobs, recorded_from=replica_id)
    except IntegrityError:
        kept = golden_reference(key)
        assert kept is not None, "an insert that was refused found a row there"
        return kept
    return logprobs
