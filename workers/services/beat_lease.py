"""Which beat leads: a row of the database, changed only by `UPDATE ... WHERE` what was seen.

In the database and not in the broker: the outbox is there too, so there is nothing to lead without it, and a broker that
comes back empty makes no second leader. No fencing token goes along with tasks, as each of them may run twice harmlessly.
A standby takes the lease when the row has not changed for TAKE_AFTER_S by its own monotonic clock.
"""

import structlog
from django.db.models import F

from workers.models import BeatLease

log = structlog.get_logger(__name__)

ROW = 1
RENEW_EVERY_S = 1.0
TAKE_AFTER_S = 5.0


class Leadership:
    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch: int | None = None  # of ours, while we hold it
        self._renewed_s = float("-inf")
        self._seen: tuple[int, int] | None = None
        self._seen_since_s = 0.0

    def hold(self, *, now_s: float) -> bool:
        """Renew it, or try to take it; `now_s` is monotonic. Raises DatabaseError."""
        if self._epoch is not None:
            return self._renew(self._epoch, now_s)
        return self._try_to_take(now_s)

    def _renew(self, epoch: int, now_s: float) -> bool:
        if now_s - self._renewed_s < RENEW_EVERY_S:
            return True
        mine = BeatLease.objects.filter(id=ROW, holder=self._name, epoch=epoch)
        if mine.update(renewals=F("renewals") + 1):
            self._renewed_s = now_s
            return True
        log.warning("beat_lease_lost", epoch=epoch)
        self._epoch, self._seen = None, None
        return False

    def _try_to_take(self, now_s: float) -> bool:
        row, _ = BeatLease.objects.get_or_create(id=ROW)
        seen = (row.epoch, row.renewals)
        if seen != self._seen:
            self._seen, self._seen_since_s = seen, now_s
        is_free = row.epoch == 0
        if not is_free and now_s - self._seen_since_s < TAKE_AFTER_S:
            return False
        unchanged = BeatLease.objects.filter(id=ROW, epoch=row.epoch, renewals=row.renewals)
        if not unchanged.update(holder=self._name, epoch=row.epoch + 1, renewals=row.renewals + 1):
            return False
        self._epoch, self._renewed_s = row.epoch + 1, now_s
        log.info("beat_leads", epoch=self._epoch)
        return True
