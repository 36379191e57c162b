"""Rollouts when nodes are lost for good, the promoted version dies, weights never come, drafts have grown old."""

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.rollout_models import RolloutState
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import roll_back_rollout
from inference.services.rollouts.ticking import tick
from tests.inference.services.rollout_cast import Cast, promoted

pytestmark = pytest.mark.django_db
_S = RolloutState


@pytest.fixture
def cast() -> Cast:
    return Cast()


def test_a_way_back_ends_though_the_candidates_node_never_comes_back(cast: Cast) -> None:
    """Nobody can say that its engine has ended; it is out of the feed, and must not keep the model from its next release."""
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    NodeHeartbeat.objects.create(name="gone", machine_kind="cpu", seen_at=timezone.now() - timedelta(minutes=1))
    lost = Replica.objects.filter(version__number=2)
    lost.update(node="gone", state=ReplicaState.FAILED, is_wanted=False, reason="its node is lost")
    roll_back_rollout(rollout=rollout, actor="test")
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLED_BACK
    assert lost.get().state == ReplicaState.FAILED
    cast.draft()


def test_a_promoted_version_that_dies_whole_gives_way_though_the_next_release_is_drafted() -> None:
    cast = Cast(versions=3)
    rollout = promoted(cast)
    draft = cast.draft("v3")
    cast.broken[2] = "the engine ended with -9"
    cast.agent()
    cast.look()
    cast.look()
    assert cast.told()["stable"] == "v1"
    assert (rollout_numbered(draft.pk).state, "goes back to m v1" in rollout_numbered(draft.pk).reason) == (_S.ABORTED, True)
    assert rollout_numbered(rollout.pk).state in {_S.ROLLING_BACK, _S.ROLLED_BACK}


def test_a_promoted_version_that_dies_whole_gives_way_though_the_next_release_is_under_way() -> None:
    cast = Cast(versions=3)
    promoted(cast)
    following = cast.started("v3")
    cast.until(following, _S.CANARY, share_ppm=50_000)
    cast.broken[2] = "the engine ended with -9"
    cast.agent()
    for _ in range(3):
        cast.look()
    assert (cast.told()["stable"], cast.told()["candidate"]) == ("v1", None)
    assert rollout_numbered(following.pk).state == _S.ROLLED_BACK
    assert cast.states(3) == []


def test_b130_weights_that_never_come_end_a_rollout_however_often_they_are_tried_for(cast: Cast) -> None:
    rollout = cast.started(gates={"stage_deadline_s": 120})
    for state in (ReplicaState.FAILED, ReplicaState.REQUESTED, ReplicaState.STAGING):
        Replica.objects.filter(version__number=2).update(state=state, changed_at=cast.now)
        cast.now += timedelta(seconds=50)
        tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK
    assert "not there after 120 s" in rollout_numbered(rollout.pk).reason


def test_a_draft_that_cannot_begin_at_its_time_says_why() -> None:
    cast = Cast(versions=3)
    late = cast.draft("v2", scheduled_for=cast.now)
    Pool.objects.update(version=cast.version(3))
    cast.look()
    found = rollout_numbered(late.pk)
    assert (found.state, "v3 is stable now" in found.reason) == (_S.DRAFT, True)
