import pytest

from inference.policy.jain import ServiceWindow, jain_index


def weight_of(tenant: str) -> float:
    return {"heavy": 2.0}.get(tenant, 1.0)


def test_equal_shares_are_1_and_all_to_one_of_n_is_1_over_n() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain_index([]) == jain_index([0.0, 0.0]) == 1.0


def test_service_counts_by_weight_among_those_who_had_to_wait() -> None:
    window = ServiceWindow(60.0)
    for tenant, tokens in (("heavy", 200.0), ("light", 100.0), ("never waits", 5.0)):
        window.record(tenant, tokens, 1.0)
    window.had_to_wait("heavy", 1.0)
    assert window.index(weight_of, {"light"}, 1.0) == pytest.approx(1.0)
    assert window.index(lambda tenant: 1.0, {"light"}, 1.0) == pytest.approx(0.9)


def test_one_who_waits_and_is_served_nothing_counts() -> None:
    window = ServiceWindow(60.0)
    window.record("light", 100.0, 1.0)
    assert window.index(weight_of, {"light", "starved"}, 1.0) == pytest.approx(0.5)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = ServiceWindow(60.0)
    window.record("light", 100.0, 0.0)
    window.had_to_wait("light", 0.0)
    window.record("other", 100.0, 70.0)
    assert window.index(weight_of, {"other"}, 70.0) == 1.0
    assert window.index(weight_of, set(), 200.0) == 1.0


def test_a_correction_never_makes_a_share_negative() -> None:
    window = ServiceWindow(60.0)
    window.record("light", -50.0, 1.0)
    window.record("other", 50.0, 1.0)
    assert window.index(weight_of, {"light", "other"}, 1.0) == pytest.approx(0.5)
