"""The split between a stable version and a candidate: even, sticky, monotone, and nothing for those it is not meant for."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.policy.split import MILLION, Versions, choose, point_of

SHARES = st.integers(0, MILLION)
TEXTS = st.text(max_size=20)
CONVERSATIONS = st.binary(min_size=1, max_size=20)


def versions(share_ppm: int, **more: object) -> Versions:
    return Versions(**{"stable": "v1", "candidate": "v2", "candidate_share_ppm": share_ppm, "salt": "r1", **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("percent", [1, 5, 20, 25, 50])
def test_b129_the_share_that_is_asked_for_is_the_share_that_is_seen_within_three_sigma(percent: int) -> None:
    num, share = 20_000, percent / 100
    split = versions(percent * MILLION // 100)
    seen = sum(choose(split, tenant=f"t{n % 7}", conversation=b"c%d" % n) == "v2" for n in range(num))
    assert abs(seen - num * share) <= 3 * sqrt(num * share * (1 - share))


@given(tenant=TEXTS, conversation=CONVERSATIONS, salt=TEXTS, smaller=SHARES, larger=SHARES)
def test_b129_one_conversation_has_one_version_and_keeps_the_candidate_while_the_share_grows(
    tenant: str, conversation: bytes, salt: str, smaller: int, larger: int
) -> None:
    smaller, larger = sorted((smaller, larger))
    before, after = (
        choose(versions(share, salt=salt), tenant=tenant, conversation=conversation) for share in (smaller, larger)
    )
    assert before == choose(versions(smaller, salt=salt), tenant=tenant, conversation=conversation)
    assert (before, after) != ("v2", "v1")


@given(tenant=TEXTS, conversation=CONVERSATIONS)
def test_nothing_goes_to_a_candidate_without_a_share_and_everything_to_one_with_all_of_it(
    tenant: str, conversation: bytes
) -> None:
    assert choose(versions(0), tenant=tenant, conversation=conversation) == "v1"
    assert choose(versions(MILLION), tenant=tenant, conversation=conversation) == "v2"
    assert choose(Versions("v1"), tenant=tenant, conversation=conversation) == "v1"


def test_what_is_of_no_conversation_is_the_stable_versions() -> None:
    assert choose(versions(MILLION), tenant="acme", conversation=b"") == "v1"


@given(conversation=st.binary(max_size=8), share=SHARES)
def test_a_pin_wins_while_its_version_serves(conversation: bytes, share: int) -> None:
    split = versions(share, pinned=frozenset({"v0"}))
    assert {choose(split, tenant="acme", conversation=conversation, pin=pin) for pin in ("v0",)} == {"v0"}
    for pin in ("v1", "v2"):
        assert choose(split, tenant="acme", conversation=conversation, pin=pin) == pin
    of_nobody = choose(split, tenant="acme", conversation=conversation)
    assert choose(split, tenant="acme", conversation=conversation, pin="retired") == of_nobody in ("v1", "v2")


@given(share=SHARES, conversation=CONVERSATIONS, pin=st.sampled_from(["", "v0", "v1", "v2", "v9"]))
def test_b128_only_versions_that_serve_are_ever_chosen(share: int, conversation: bytes, pin: str) -> None:
    split = versions(share, pinned=frozenset({"v0"}))
    assert choose(split, tenant="acme", conversation=conversation, pin=pin) in split.serving == ("v1", "v0", "v2")


def test_another_rollout_or_tenant_draws_anew() -> None:
    points = {point_of(salt, tenant, b"c") for salt in ("r1", "r2") for tenant in ("acme", "globex")}
    assert len(points) == 4 and all(0 <= point < MILLION for point in points)


def test_an_external_models_stable_version_has_no_label_and_no_candidate_is_none() -> None:
    split = Versions("")
    assert split.serving == ("",) and split.serves("") and not split.serves("v1")
    assert not Versions("v1").serves("")
