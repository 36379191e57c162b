"""Who alone may do something. Each move is one UPDATE with the epoch it expects: one row changed, or someone else was first."""

from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from inference.models import Lease

DISPATCHER = "dispatcher"


@dataclass(frozen=True, slots=True)
class LeaseView:
    holder: str
    address: str
    """Empty: it was given back."""
    epoch: int
    renewed_at: datetime


def current_lease(*, name: str = DISPATCHER) -> LeaseView | None:
    row = Lease.objects.filter(pk=name).values_list("holder", "address", "epoch", "renewed_at").first()
    return None if row is None else LeaseView(*row)


def take_lease(
    *, holder: str, address: str, epoch: int, expected_epoch: int | None, now: datetime, name: str = DISPATCHER
) -> bool:
    """`expected_epoch` None: there is no row yet. The epoch only grows."""
    assert epoch > (expected_epoch or 0)
    values = {"holder": holder, "address": address, "epoch": epoch, "renewed_at": now}
    if expected_epoch is not None:
        return bool(Lease.objects.filter(pk=name, epoch=expected_epoch).update(**values))
    try:
        with transaction.atomic():
            Lease.objects.create(name=name, **values)
    except IntegrityError:
        return False
    return True


def renew_lease(*, holder: str, epoch: int, now: datetime, name: str = DISPATCHER) -> bool:
    """False: it is someone else's."""
    return bool(Lease.objects.filter(pk=name, holder=holder, epoch=epoch).update(renewed_at=now))


def give_lease_back(*, holder: str, epoch: int, name: str = DISPATCHER) -> bool:
    """The next one need not wait until it is stale."""
    return bool(Lease.objects.filter(pk=name, holder=holder, epoch=epoch).update(address=""))
