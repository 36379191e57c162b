from datetime import timedelta

import pytest
from django.utils import timezone

from inference.services.lease import current_lease, give_lease_back, renew_lease, take_lease

pytestmark = pytest.mark.django_db


def take(holder: str, epoch: int, expected_epoch: int | None) -> bool:
    return take_lease(holder=holder, address=f"unix:/{holder}", epoch=epoch, expected_epoch=expected_epoch, now=timezone.now())


def test_of_two_who_saw_the_same_epoch_one_gets_the_lease() -> None:
    assert take("a", 1, None)
    assert not take("b", 1, None)
    assert take("b", 2, 1)
    assert not take("c", 2, 1)
    lease = current_lease()
    assert lease is not None and (lease.holder, lease.address, lease.epoch) == ("b", "unix:/b", 2)


def test_only_its_holder_renews_it_and_gives_it_back() -> None:
    take("a", 1, None)
    later = timezone.now() + timedelta(seconds=5)
    assert not renew_lease(holder="b", epoch=1, now=later)
    assert not renew_lease(holder="a", epoch=2, now=later)
    assert not give_lease_back(holder="b", epoch=1)
    assert renew_lease(holder="a", epoch=1, now=later)
    lease = current_lease()
    assert lease is not None and (lease.renewed_at, lease.address) == (later, "unix:/a")
    assert give_lease_back(holder="a", epoch=1)
    lease = current_lease()
    assert lease is not None and (lease.address, lease.epoch) == ("", 1)
