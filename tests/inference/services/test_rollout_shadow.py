"""The shadow step of a rollout: judged by what mirrored requests came to, before anybody gets a candidate's answer."""

from datetime import timedelta

import pytest

from inference.models import ControlChange, NodeHeartbeat, Replica
from inference.rollout_models import Rollout, RolloutState
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import abort_rollout, pause_rollout, resume_rollout
from inference.services.shadow_budget import give_back_shadow_part, take_shadow_part
from inference.services.shadow_scores import KEEP, Answer, forget_old_scores, write_scores
from inference.shadow_models import ShadowScore
from tenants.models import Tenant
from tests.inference.services.rollout_cast import SCHEDULE, STEP, Cast
from tests.inference.services.test_shadow_scores import mirrored
from tests.tenants.test_at_once import at_once

pytestmark = pytest.mark.django_db
_S = RolloutState
SHADOW = {**SCHEDULE, "shadow": {"share_ppm": 100_000, "max_usd_micros": 5_000, **STEP}}
FAST, SLOW = Answer(200, 30.0, 40, "stop", "it is 42"), Answer(900, 200.0, 40, "stop", "it is 42")


def told(cast: Cast) -> dict[str, object]:
    payload = ControlChange.objects.filter(kind="model", key=cast.model).latest("id").payload
    assert payload is not None
    versions: dict[str, object] = payload["versions"]
    return versions


def in_shadow() -> tuple[Cast, Rollout]:
    cast = Cast()
    rollout = cast.until(cast.started(schedule=SHADOW), _S.SHADOW)
    while not rollout.shadow_share_ppm:
        cast.look()
        rollout = rollout_numbered(rollout.pk)
    return cast, rollout


def score(cast: Cast, rollout: Rollout, number: int, candidate: Answer = FAST, error: str = "") -> None:
    cast.look(after_s=1)
    write_scores(
        mirrored(rollout=str(rollout.pk), of_stable=FAST, of_candidate=candidate, error=error, at_s=cast.now.timestamp())
        for _ in range(number)
    )


def test_requests_are_mirrored_to_a_candidate_that_nobody_gets_and_our_own_account_is_there_for_them() -> None:
    cast, _ = in_shadow()
    versions = told(cast)
    assert (versions["candidate"], versions["candidate_share_ppm"], versions["shadow_share_ppm"]) == ("v2", 0, 100_000)
    assert versions["shadow_max_usd_micros_left"] == 5_000
    assert Tenant.objects.filter(is_operator=True).count() == 1


def test_a_candidate_whose_mirrored_answers_are_as_good_goes_on_to_its_first_share() -> None:
    cast, rollout = in_shadow()
    score(cast, rollout, 50)
    cast.look(after_s=61)
    assert rollout_numbered(rollout.pk).state == _S.SHADOW, "too few"
    score(cast, rollout, 400)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    assert told(cast)["shadow_share_ppm"] == 0


@pytest.mark.parametrize(("candidate", "error"), [(SLOW, ""), (Answer(), "engine_died")], ids=["slow", "failing"])
def test_a_bad_candidate_is_rolled_back_without_having_answered_anybody(candidate: Answer, error: str) -> None:
    cast, rollout = in_shadow()
    score(cast, rollout, 300)
    score(cast, rollout, 200, candidate, error)
    score(cast, rollout, 0)
    found = cast.until(rollout, _S.ROLLED_BACK)
    assert found.share_ppm == 0 and told(cast)["candidate"] is None


def test_what_is_mirrored_is_judged_once_the_candidates_node_has_been_heard_of_since() -> None:
    """It may have failed with its node."""
    cast, rollout = in_shadow()
    score(cast, rollout, 300)
    NodeHeartbeat.objects.create(name="there", machine_kind="cpu", seen_at=cast.now)
    Replica.objects.filter(version__number=2).update(node="there")
    score(cast, rollout, 200, Answer(), "engine_died")
    score(cast, rollout, 0)
    assert rollout_numbered(rollout.pk).state == _S.SHADOW
    NodeHeartbeat.objects.filter(name="there").update(seen_at=cast.now + timedelta(days=1))
    cast.until(rollout, _S.ROLLED_BACK)


def test_gateways_take_parts_of_the_cap_and_together_never_more_than_it() -> None:
    cast, rollout = in_shadow()
    salt = str(rollout.pk)
    assert [take_shadow_part(rollout=salt, micros=micros) for micros in (2_000, 2_500, 2_000, 1)] == [2_000, 2_500, 500, 0]
    cast.look()
    assert "gateways have taken all that mirrored requests may cost" in rollout_numbered(rollout.pk).reason
    give_back_shadow_part(rollout=salt, micros=300)
    assert [take_shadow_part(rollout=salt, micros=200) for _ in range(3)] == [200, 100, 0]


@pytest.mark.django_db(transaction=True)
def test_gateways_that_take_at_the_same_moment_share_what_is_left() -> None:
    _, rollout = in_shadow()
    given: list[int] = []

    def take() -> None:
        while micros := take_shadow_part(rollout=str(rollout.pk), micros=700):
            given.append(micros)

    assert at_once(*[take] * 4) == {"done": 4}
    assert sum(given) + rollout_numbered(rollout.pk).shadow_micros_left == 5_000
    assert len(given) >= 4


def test_a_look_a_pause_and_going_on_fill_no_cap_again_and_a_pause_gives_nothing() -> None:
    cast, rollout = in_shadow()
    assert take_shadow_part(rollout=str(rollout.pk), micros=4_000) == 4_000
    cast.look()
    pause_rollout(rollout=rollout, actor="test")
    assert take_shadow_part(rollout=str(rollout.pk), micros=10) == 0
    resume_rollout(rollout=rollout, actor="test")
    cast.look()
    cast.look()
    assert told(cast)["shadow_share_ppm"] == 100_000
    assert take_shadow_part(rollout=str(rollout.pk), micros=4_000) == 1_000


def test_scores_of_a_rollout_that_is_over_are_forgotten_and_those_of_one_that_runs_are_kept() -> None:
    cast, rollout = in_shadow()
    score(cast, rollout, 3)
    write_scores([mirrored(rollout="999999", at_s=cast.now.timestamp())])
    old = cast.now + KEEP + timedelta(hours=1)
    assert forget_old_scores(now=cast.now) == 0
    assert forget_old_scores(now=old) == 1, "nobody knows that rollout"
    abort_rollout(rollout=rollout, actor="test")
    cast.until(rollout, _S.ABORTED)
    assert forget_old_scores(now=cast.now) == 0, "not old enough"
    assert forget_old_scores(now=old) == 3
    assert not ShadowScore.objects.exists()
