"""What engines have counted, by replica and epoch: written by node agents, read by reconciliation."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from inference.models import EngineCount, Replica, ReplicaState


@dataclass(frozen=True)
class Count:
    """One engine's counters since its start, as they were at some moment from `counted_from` to `counted_at`."""

    replica: str
    epoch: int
    prompt_tokens: int
    completion_tokens: int
    counted_from: datetime
    counted_at: datetime
    open_requests: int
    """Running or waiting at that moment."""
    is_whole: bool
    """The agent's own work was counted since the engine's start; else nothing is known about that."""
    began_at: datetime | None = None
    own_prompt_tokens: int = 0
    own_completion_tokens: int = 0
    own_max_prompt_tokens: int = 0
    own_max_completion_tokens: int = 0
    pool: str = ""
    max_model_len: int = 0


def note_count(count: Count) -> None:
    """Keep the newest. Written by the one agent of the replica's node, so nobody else writes the row at once."""
    replica = Replica.objects.filter(pk=count.replica).select_related("pool").first()
    values: dict[str, Any] = asdict(count)
    key = {name: values.pop(name) for name in ("replica", "epoch")}
    if replica is not None:
        values |= {"pool": replica.pool.name, "max_model_len": replica.max_model_len}
    EngineCount.objects.update_or_create(**key, defaults=values)


def counts_since(since: datetime | None) -> list[Count]:
    """By replica and epoch; of the engines that were counted since then."""
    rows = EngineCount.objects.order_by("replica", "epoch")
    if since is not None:
        rows = rows.filter(counted_at__gte=since)
    return [Count(**{name: getattr(row, name) for name in Count.__dataclass_fields__}) for row in rows]


def uncounted_engines(now: datetime, *, fresh_within: timedelta) -> dict[tuple[str, int], str]:
    """Why each of the engines that serve now has no count: by replica and epoch."""
    counted = set(EngineCount.objects.filter(counted_at__gte=now - fresh_within).values_list("replica", "epoch"))
    ready = Replica.objects.filter(state__in=(ReplicaState.READY, ReplicaState.WARM, ReplicaState.DRAINING))
    found = {}
    for replica, epoch, node in ready.order_by("id").values_list("id", "epoch", "node"):
        if not node:
            found[replica, epoch] = "an external engine: its counters are not read"
        elif (replica, epoch) not in counted:
            found[replica, epoch] = "its agent has told no counters lately"
    return found
