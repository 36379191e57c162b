"""Who alone may do something. Each move is one UPDATE with the epoch it expects: one row changed, or someone else was first."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from inference.models import Lease

DISPATCHER = "dispatcher"
_CURRENT = "SELECT holder, address, epoch, renewed_at, members, is_open FROM inference_lease WHERE name = %s"


@dataclass(frozen=True, slots=True)
class LeaseView:
    holder: str
    address: str
    """Empty: it was given back."""
    epoch: int
    renewed_at: datetime
    members: tuple[str, ...] = ()
    """Gateways that may hold grants of whoever decided last."""
    is_open: bool = True
    """False: its holder does not know yet that he is the only one, and `members` are those of the one before."""


def current_lease(*, name: str = DISPATCHER) -> LeaseView | None:
    """Asked four times a second by every dispatcher, so it goes round the ORM."""
    with connection.cursor() as cursor:
        cursor.execute(_CURRENT, [name])
        row = cursor.fetchone()
    if row is None:
        return None
    holder, address, epoch, renewed_at, members, is_open = row
    if timezone.is_naive(renewed_at):  # SQLite has no zones
        renewed_at = renewed_at.replace(tzinfo=UTC)
    return LeaseView(holder, address, epoch, renewed_at, tuple(json.loads(members)), bool(is_open))


def take_lease(
    *,
    holder: str,
    address: str,
    epoch: int,
    expected_epoch: int | None,
    now: datetime,
    name: str = DISPATCHER,
    expected_renewed_at: datetime | None = None,
    is_open: bool = True,
) -> bool:
    """`expected_epoch` None: there is no row yet. The epoch only grows. Its members stay until its holder names others."""
    assert epoch > (expected_epoch or 0)
    values = {"holder": holder, "address": address, "epoch": epoch, "renewed_at": now, "is_open": is_open}
    if expected_epoch is not None:
        rows = Lease.objects.filter(pk=name, epoch=expected_epoch)
        if expected_renewed_at is not None:
            rows = rows.filter(renewed_at=expected_renewed_at)
        return bool(rows.update(**values))
    try:
        with transaction.atomic():
            Lease.objects.create(name=name, **values)
    except IntegrityError:
        return False
    return True


def renew_lease(
    *, holder: str, epoch: int, now: datetime, members: Sequence[str] | None = None, name: str = DISPATCHER
) -> bool:
    """False: it is someone else's. `members`: of one that is open; None: as they were."""
    values: dict[str, object] = {"renewed_at": now}
    if members is not None:
        values |= {"members": list(members), "is_open": True}
    return bool(Lease.objects.filter(pk=name, holder=holder, epoch=epoch).update(**values))


def give_lease_back(*, holder: str, epoch: int, name: str = DISPATCHER) -> bool:
    """The next one need not wait until it is stale."""
    return bool(Lease.objects.filter(pk=name, holder=holder, epoch=epoch).update(address=""))
