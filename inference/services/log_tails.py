"""The last lines of an engine's log, which lies on its node: asked for here, told by the node's agent within a second or so."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from inference.fleet_models import LogTail
from inference.services.moving import known_replica

MAX_CHARS = 100_000


@dataclass(frozen=True)
class Told:
    """`asked_at` None: nothing is waited for. `told_at` None: nothing was told yet."""

    text: str
    asked_at: datetime | None
    told_at: datetime | None


def ask_for_log(*, replica_id: str) -> None:
    """Raises UnknownReplica, InvalidInput (an external one)."""
    replica = known_replica(replica_id)
    LogTail.objects.update_or_create(replica=replica.id, defaults={"node": replica.node, "asked_at": timezone.now()})


def log_of(replica_id: str) -> Told:
    row = LogTail.objects.filter(pk=replica_id).first()
    return Told("", None, None) if row is None else Told(row.text, row.asked_at, row.told_at)


def tell_logs(*, node: str, tail: Callable[[str], str]) -> int:
    """By the node's agent. Returns how many were told."""
    asked = list(LogTail.objects.filter(node=node).exclude(asked_at=None))
    for row in asked:
        text = tail(row.replica).replace("\0", "")[-MAX_CHARS:]
        told = {"text": text, "told_at": timezone.now(), "asked_at": None}
        LogTail.objects.filter(pk=row.pk, asked_at=row.asked_at).update(**told)
    return len(asked)
