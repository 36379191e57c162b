"""How long starts of managed replicas take, by the moments of their agents' moves: place, stage, load, certify."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from inference.models import Pool, Replica, ReplicaState
from inference.scaling_models import ReplicaStart

KEEP = timedelta(days=30)
GUESSED_START_S = 30.0
"""Of a pool of which no start is known."""
LAST_STARTS = 5
_S = ReplicaState


@dataclass(frozen=True, slots=True)
class StartParts:
    """Seconds; None: it has not come so far."""

    replica: str
    version: str
    node: str
    at: datetime
    place_s: float
    """Until its agent had it."""
    stage_s: float | None
    """Until its weights were there, checked."""
    load_s: float | None
    """Until its engine answered."""
    certify_s: float | None
    total_s: float | None


def note_move(*, replica: Replica, to: ReplicaState, at: datetime) -> None:
    """Call it in the transaction of the move."""
    rows = ReplicaStart.objects.filter(replica=replica.id, up_at=None)
    if to == _S.STAGING:
        rows.delete()  # of a start that failed
        asked_at = replica.created_at if replica.epoch == 0 else at
        ReplicaStart.objects.create(
            replica=replica.id,
            pool_id=replica.pool_id,
            version=f"v{replica.version.number}" if replica.version else "",
            node=replica.node,
            requested_at=asked_at,
            staging_at=at,
        )
    elif to == _S.STARTING:
        rows.filter(starting_at=None).update(starting_at=at)
    elif to == _S.CERTIFYING:
        rows.filter(certifying_at=None).exclude(starting_at=None).update(certifying_at=at)
    elif to in {_S.READY, _S.WARM}:
        rows.exclude(certifying_at=None).update(up_at=at)


def usual_start_s(pool: Pool) -> float:
    """The median of the last starts, from asked for to up."""
    rows = ReplicaStart.objects.filter(pool=pool).exclude(up_at=None).order_by("-id")[:LAST_STARTS]
    took_s = sorted((row.up_at - row.requested_at).total_seconds() for row in rows if row.up_at is not None)
    return round(took_s[len(took_s) // 2], 1) if took_s else GUESSED_START_S


def last_starts(pool: Pool, *, limit: int = 5) -> list[StartParts]:
    """The newest first."""
    return [parts_of(row) for row in ReplicaStart.objects.filter(pool=pool).order_by("-id")[:limit]]


def newest_start(replica_id: str) -> StartParts | None:
    row = ReplicaStart.objects.filter(replica=replica_id).order_by("-id").first()
    return None if row is None else parts_of(row)


def forget_old_starts(*, now: datetime) -> int:
    return ReplicaStart.objects.filter(staging_at__lt=now - KEEP).delete()[0]


def parts_of(row: ReplicaStart) -> StartParts:
    def between(first: datetime | None, last: datetime | None) -> float | None:
        return None if first is None or last is None else round((last - first).total_seconds(), 2)

    return StartParts(
        replica=row.replica,
        version=row.version,
        node=row.node,
        at=row.requested_at,
        place_s=round((row.staging_at - row.requested_at).total_seconds(), 2),
        stage_s=between(row.staging_at, row.starting_at),
        load_s=between(row.starting_at, row.certifying_at),
        certify_s=between(row.certifying_at, row.up_at),
        total_s=between(row.requested_at, row.up_at),
    )
