"""When keys were used last: carried over from usage, now and then, never by a request."""

from datetime import datetime, timedelta

from django.db.models import Max, Q

from billing.selectors import last_use_of_keys
from tenants.models import ApiKey

LOOK_BACK = timedelta(hours=2)


def note_key_use() -> int:
    """Returns how many keys were used since they were looked at last. Looking again at what was seen changes nothing."""
    newest: datetime | None = ApiKey.unscoped.aggregate(newest=Max("last_used_at"))["newest"]
    changed = 0
    for key_id, at in last_use_of_keys(since=newest - LOOK_BACK if newest else None).items():
        rows = ApiKey.unscoped.filter(Q(last_used_at=None) | Q(last_used_at__lt=at), id=key_id)
        changed += rows.update(last_used_at=at)
    return changed
