"""Which nodes are alive: by the database's clock, since those of machines differ.

An agent beats five times within `settings.NODE_LOST_S`; one that was silent for longer gets no new replica, and loses
those it has (services/lost_nodes.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from inference.errors import NodeNameTaken
from inference.fleet_models import ReplicaLoad
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.replicas import publish_replica

BEATS_A_LIMIT = 5
NAME_KEPT_FOR_LIMITS = 6
"""A name belongs to the agent that beat last until its node is lost, or has been silent for so many times the limit."""


@dataclass(frozen=True)
class Load:
    """What one engine does: see ReplicaLoad."""

    epoch: int
    running: int
    waiting: int
    kv_used_ratio: float
    tokens_per_s: float
    prefix_hit_ratio: float | None = None
    accepted_ratio: float | None = None


@dataclass(frozen=True)
class Beat:
    """`loads` by replica id: of the engines that serve or stand by."""

    machine_kind: str
    zone: str
    max_replicas: int
    loads: Mapping[str, Load]
    address: str = ""
    agent: str = ""
    """Tells agents of one name apart; empty: nobody else can have it."""
    accelerator: str = ""
    """cpu or cuda."""
    environments: Sequence[str] | None = None
    """Names of the engine environments that are installed there."""


def lost_after() -> timedelta:
    return timedelta(seconds=settings.NODE_LOST_S)


def beat_every_s() -> float:
    return float(settings.NODE_LOST_S) / BEATS_A_LIMIT


def check_name(*, node: str, agent: str) -> None:
    """Of two agents with one name only the first may look after its replicas. Raises NodeNameTaken."""
    row = NodeHeartbeat.objects.filter(pk=node).first()
    if row is not None and not _may_have(node, agent).exists():
        raise NodeNameTaken(
            f"the node name {node!r} is another agent's, which last beat at {row.seen_at:%Y-%m-%d %H:%M:%S} UTC: set another "
            f"HEADWAY_NODE_NAME here or, once that machine is gone, run `manage.py forget_node {node}`"
        )


def _may_have(node: str, agent: str) -> "QuerySet[NodeHeartbeat]":
    free = Q(lost_at__isnull=False) | Q(seen_at__lt=Now() - NAME_KEPT_FOR_LIMITS * lost_after())
    return NodeHeartbeat.objects.filter(Q(agent__in=("", agent)) | free, pk=node)


def note_beat(*, node: str, beat: Beat) -> None:
    """Written by the one agent of that node. Raises NodeNameTaken for another one."""
    facts = {
        "machine_kind": beat.machine_kind,
        "zone": beat.zone,
        "max_replicas": beat.max_replicas,
        "address": beat.address,
        "agent": beat.agent,
        "accelerator": beat.accelerator,
        "environments": None if beat.environments is None else list(beat.environments),
    }
    if not _may_have(node, beat.agent).exists():
        _first_beat(node, beat.agent, facts)
    if NodeHeartbeat.objects.filter(pk=node).exclude(address=beat.address).exists():
        _moved(node, beat.address)
    if not _may_have(node, beat.agent).update(**facts, seen_at=Now(), lost_at=None):
        check_name(node=node, agent=beat.agent)
    if beat.loads:
        rows = [ReplicaLoad(replica=replica, at=Now(), **asdict(load)) for replica, load in sorted(beat.loads.items())]
        fields = [*Load.__dataclass_fields__, "at"]
        ReplicaLoad.objects.bulk_create(rows, update_conflicts=True, unique_fields=["replica"], update_fields=fields)


def _first_beat(node: str, agent: str, facts: Mapping[str, Any]) -> None:
    """Raises NodeNameTaken, also where another agent was quicker."""
    try:
        with transaction.atomic():
            NodeHeartbeat.objects.create(name=node, seen_at=Now(), **facts)
    except IntegrityError:
        check_name(node=node, agent=agent)


def _moved(node: str, address: str) -> None:
    """Gateways of other machines are told where its replicas are now."""
    with transaction.atomic():
        NodeHeartbeat.objects.filter(pk=node).update(address=address)
        for replica in Replica.objects.filter(node=node).exclude(state=ReplicaState.STOPPED).order_by("id"):
            publish_replica(replica)


def live_nodes() -> "QuerySet[NodeHeartbeat]":
    return NodeHeartbeat.objects.filter(seen_at__gte=Now() - lost_after())


def silent_nodes() -> "QuerySet[NodeHeartbeat]":
    return NodeHeartbeat.objects.filter(seen_at__lt=Now() - lost_after())
