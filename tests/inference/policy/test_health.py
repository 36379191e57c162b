import pytest

from inference.policy.health import Health, HealthTunables, State

TUNABLES = HealthTunables(strikes_to_eject=3.0, forgiven_per_success=0.25, cool_down_s=2.0, max_cool_down_s=16.0)


class Ward:
    """One replica; every request begins and ends before the next."""

    def __init__(self) -> None:
        self.health = Health(TUNABLES)
        self.event = 0
        self.health.reset("a", 0)
        self.record = self.health.records["a"]

    def next(self) -> int:
        self.event += 1
        return self.event

    def fails(self, now_s: float, times: int = 1) -> None:
        for _ in range(times):
            begun = self.next()
            self.health.failed("a", begun_event=begun, event=self.next(), now_s=now_s)
            self.health.check_invariants()

    def serves(self) -> None:
        self.health.served("a", begun_event=self.next())
        self.health.check_invariants()

    def is_due(self, now_s: float) -> bool:
        due = "a" in self.health.due(now_s)
        self.health.check_invariants()
        return due


def test_failures_in_a_row_eject_and_one_does_not() -> None:
    ward = Ward()
    ward.fails(0.0, times=2)
    assert not ward.record.is_ejected
    ward.fails(0.0)
    assert ward.record.is_ejected
    assert not ward.is_due(1.9)
    assert ward.is_due(2.0)


def test_good_answers_wear_strikes_off_but_one_failure_in_three_does_not_pass() -> None:
    ward = Ward()
    for _ in range(100):
        ward.fails(0.0)
        for _ in range(5):
            ward.serves()
    assert not ward.record.is_ejected
    until_ejected = 0
    while not ward.record.is_ejected and until_ejected < 10:
        until_ejected += 1
        ward.serves()
        ward.serves()
        ward.fails(0.0)
    assert until_ejected == 5


def test_what_was_running_when_it_failed_before_is_the_same_failure_and_says_nothing_good_either() -> None:
    ward = Ward()
    before = [ward.next() for _ in range(20)]
    for begun in before[:-1]:
        ward.health.failed("a", begun_event=begun, event=ward.next(), now_s=0.0)
    assert ward.record.strikes == 1.0
    ward.health.served("a", begun_event=before[-1])
    assert ward.record.strikes == 1.0


def test_the_cool_down_doubles_up_to_its_bound() -> None:
    ward = Ward()
    ward.fails(0.0, times=3)
    now_s, waits_s = 0.0, []
    for _ in range(6):
        until_s = ward.health.next_event_s(now_s)
        assert until_s is not None
        waits_s.append(until_s - now_s)
        now_s = until_s
        assert ward.is_due(now_s)
        probe = ward.next()
        ward.health.probe_begins("a", "probe")
        ward.health.failed("a", begun_event=probe, event=ward.next(), now_s=now_s)
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]


def test_a_probes_first_token_brings_it_back_on_trial() -> None:
    ward = Ward()
    ward.fails(0.0, times=3)
    assert ward.is_due(2.0)
    ward.health.probe_begins("a", "probe")
    assert not ward.is_due(2.0), "one probe at a time"
    ward.health.answered("a", begun_event=ward.next())
    assert ward.record.state is State.WELL
    ward.fails(3.0)
    assert ward.record.is_ejected, "on trial one failure is enough"
    assert ward.health.next_event_s(3.0) == pytest.approx(7.0), "and the cool-down goes on doubling"
    assert ward.is_due(7.0)
    ward.health.probe_begins("a", "again")
    ward.serves()
    ward.fails(8.0, times=2)
    assert not ward.record.is_ejected, "a good answer has cleared it"


def test_a_probe_whose_client_leaves_is_followed_by_another_at_once() -> None:
    ward = Ward()
    ward.fails(0.0, times=3)
    assert ward.is_due(2.0)
    ward.health.probe_begins("a", "probe")
    ward.health.probe_lost("a", "somebody else")
    assert not ward.is_due(2.0)
    ward.health.probe_lost("a", "probe")
    assert ward.is_due(2.0)


def test_a_fresh_strike_makes_it_less_liked_for_a_while() -> None:
    ward = Ward()
    ward.fails(10.0)
    assert ward.health.suspicion_s(ward.record, 10.0) == pytest.approx(1.0)
    assert ward.health.suspicion_s(ward.record, 11.0) == pytest.approx(0.5)
    assert ward.health.suspicion_s(ward.record, 12.0) == 0.0


def test_who_is_forgotten_or_new_is_not_probed() -> None:
    ward = Ward()
    ward.fails(0.0, times=3)
    ward.health.reset("a", ward.next())
    assert ward.health.next_event_s(0.0) is None
    assert not ward.is_due(100.0)
    ward.record = ward.health.records["a"]
    ward.fails(100.0, times=3)
    ward.health.forget("a")
    assert ward.health.next_event_s(100.0) is None
    assert not ward.is_due(200.0)
