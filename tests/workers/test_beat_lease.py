import pytest

from workers.models import BeatLease
from workers.services.beat_lease import RENEW_EVERY_S, TAKE_AFTER_S, Leadership

pytestmark = pytest.mark.django_db


def test_the_first_takes_it_and_the_second_stands_by() -> None:
    first, second = Leadership("a"), Leadership("b")
    assert first.hold(now_s=0)
    for now_s in range(1, 60):
        assert (first.hold(now_s=now_s), second.hold(now_s=now_s)) == (True, False)
    assert BeatLease.objects.get().epoch == 1


def test_a_holder_that_went_silent_is_replaced_and_finds_out() -> None:
    first, second = Leadership("a"), Leadership("b")
    first.hold(now_s=0)
    second.hold(now_s=100)
    assert not second.hold(now_s=100 + TAKE_AFTER_S - 0.1)
    assert second.hold(now_s=100 + TAKE_AFTER_S)
    assert not first.hold(now_s=RENEW_EVERY_S)
    assert second.hold(now_s=101 + TAKE_AFTER_S)
    assert BeatLease.objects.get().holder == "b"


def test_of_two_that_wait_one_gets_it() -> None:
    Leadership("dead").hold(now_s=0)
    waiting = [Leadership("b"), Leadership("c")]
    for each in waiting:
        each.hold(now_s=0)
    assert [each.hold(now_s=TAKE_AFTER_S) for each in waiting] == [True, False]
    assert [each.hold(now_s=TAKE_AFTER_S + 2) for each in waiting] == [True, False]


def test_clocks_of_different_machines_do_not_matter() -> None:
    first, second = Leadership("a"), Leadership("b")
    first.hold(now_s=1_000_000)
    assert not second.hold(now_s=5)
    first.hold(now_s=1_000_002)
    assert not second.hold(now_s=5 + TAKE_AFTER_S), "it was renewed meanwhile"
