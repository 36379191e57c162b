"""Rollouts when nodes are lost for good, the promoted version dies, weights never come, drafts have grown old."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from inference.errors import RolloutMoved
from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.rollout_models import Rollout, RolloutState
from inference.services.node import mark_stopped
from inference.services.replicas import take_down
from inference.services.rollouts import advancing
from inference.services.rollouts.advancing import tick_rollout
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import abort_rollout, resume_rollout, roll_back_rollout
from inference.services.rollouts.reading import shown
from inference.services.rollouts.ticking import tick
from tests.inference.services.rollout_cast import Cast, promoted, serve_well

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


def test_a_way_back_from_promotion_that_cannot_be_gone_is_given_up_and_the_next_release_made() -> None:
    """The old version's node is gone for good, and nothing else has room: it would be open for ever."""
    cast = Cast(versions=3)
    rollout = promoted(cast)
    cast.broken[1] = "the engine ended with -9"
    cast.agent()
    roll_back_rollout(rollout=rollout, actor="test")
    for _ in range(5):
        cast.look()
    waits = rollout_numbered(rollout.pk)
    assert (waits.state, "0 of 1 replicas of m v1 serve: rep-" in waits.reason) == (_S.ROLLING_BACK, True)
    assert "the engine ended with -9" in waits.reason
    assert shown(waits, now=cast.now)["may"]["resume"]
    resume_rollout(rollout=waits, actor="ada")
    cast.look()
    stays = rollout_numbered(rollout.pk)
    assert (stays.state, stays.ended_at is None, cast.told()["stable"]) == (_S.PROMOTED, False, "v2")
    assert cast.states(2) == ["ready", "ready"]
    following = cast.draft("v3")
    abort_rollout(rollout=following, actor="test")
    cast.broken.clear()
    cast.agent()
    roll_back_rollout(rollout=stays, actor="test")
    cast.until(rollout, _S.ROLLED_BACK)
    assert cast.told()["stable"] == "v1"


def test_a_way_back_is_not_given_up_once_the_old_version_is_stable_nor_before_promotion(cast: Cast) -> None:
    rollout = promoted(cast)
    roll_back_rollout(rollout=rollout, actor="test")
    cast.agent()
    tick(cast.now)  # v1 is stable again, and v2 drains
    assert cast.told()["stable"] == "v1"
    with pytest.raises(RolloutMoved, match="m v1 is stable"):
        resume_rollout(rollout=rollout, actor="test")
    cast.until(rollout, _S.ROLLED_BACK)
    never = cast.started()
    cast.until(never, _S.CANARY, share_ppm=50_000)
    abort_rollout(rollout=never, actor="test")
    assert not shown(rollout_numbered(never.pk), now=cast.now)["may"]["resume"]
    with pytest.raises(RolloutMoved):
        resume_rollout(rollout=never, actor="test")
    assert rollout_numbered(never.pk).state == _S.ROLLING_BACK


def canary_whose_engine_was_taken(cast: Cast, **more: Any) -> tuple[Rollout, Replica]:
    """By the loss of its node: requests are for it, and the stable version serves them."""
    rollout = cast.started(**more)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    replica = Replica.objects.get(version__number=2)
    take_down(replica_id=replica.id, expected=ReplicaState.READY, reason="its node is lost: no heartbeat for 10 s")
    Replica.objects.filter(pk=replica.pk).update(changed_at=cast.now)
    for _ in range(2):
        cast.now += timedelta(seconds=5)
        tick(cast.now)
    return rollout_numbered(rollout.pk), replica


def findings(rollout: Rollout) -> dict[str, tuple[str, str]]:
    assert rollout.verdict is not None
    return {each["gate"]: (each["outcome"], each["reason"]) for each in rollout.verdict["findings"]}


def test_a_candidate_whose_node_is_lost_is_not_blamed_and_goes_on_when_it_serves_again(cast: Cast) -> None:
    rollout, _ = canary_whose_engine_was_taken(cast)
    assert (rollout.state, rollout.share_ppm) == (_S.CANARY, 50_000)
    assert findings(rollout)["engines"] == ("insufficient", "0 of 1 replicas serve")
    Replica.objects.filter(version__number=2).update(state=ReplicaState.REQUESTED)  # its agent is back, or another has it
    cast.now += timedelta(seconds=5)
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.CANARY
    cast.agent()
    serve_well(cast)
    cast.look(after_s=90)
    cast.until(rollout, _S.CANARY, share_ppm=500_000)


def test_a_candidate_that_was_taken_once_and_then_crashes_is_rolled_back(cast: Cast) -> None:
    rollout, replica = canary_whose_engine_was_taken(cast)
    cast.agent()
    Replica.objects.filter(pk=replica.pk).update(epoch=2)  # started anew: its agent counts
    cast.look()
    assert rollout_numbered(rollout.pk).state == _S.CANARY
    Replica.objects.filter(pk=replica.pk).update(state=ReplicaState.FAILED, reason="the engine ended with -9")
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK
    assert "none of its replicas serves" in rollout_numbered(rollout.pk).reason


def test_a_candidate_that_nobody_has_room_for_any_more_is_not_waited_for_for_ever(cast: Cast) -> None:
    rollout, _ = canary_whose_engine_was_taken(cast, gates={"stage_deadline_s": 120})
    cast.now += timedelta(seconds=100)
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.CANARY
    cast.now += timedelta(seconds=11)
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK


def test_an_installation_that_is_stopped_and_started_in_a_canary_goes_on_with_it(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    mark_stopped(nodes=["here"], reason="stopped by make down")
    cast.look()
    assert set(cast.states(1) + cast.states(2)) == {"ready"}
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.share_ppm) == (_S.CANARY, 50_000)


def test_of_two_looks_at_once_the_second_does_nothing_by_what_it_saw_before_the_first(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw no share, so it read no traffic: a step is not left by that."""
    hasty = {"min_duration_s": 0, "min_samples": 0}
    steps = [{"share_ppm": share_ppm, **hasty} for share_ppm in (50_000, 500_000)]
    rollout = cast.started(schedule={"steps": steps, "shadow": None})
    cast.until(rollout, _S.CANARY, share_ppm=0)
    look = advancing.look_at_rollout

    def looks_and_is_overtaken(seen: Rollout, *, now: datetime) -> advancing.Sight:
        sight = look(seen, now=now)
        monkeypatch.setattr(advancing, "look_at_rollout", look)
        tick_rollout(rollout_numbered(seen.pk), now=now)
        return sight

    monkeypatch.setattr(advancing, "look_at_rollout", looks_and_is_overtaken)
    tick_rollout(rollout_numbered(rollout.pk), now=cast.now)
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.step, found.share_ppm) == (_S.CANARY, 0, 50_000)


def canary_that_fails_on_a_node_of_its_own(cast: Cast) -> tuple[Rollout, Replica]:
    """Many of its attempts, all since the node has beaten last."""
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 200)
    cast.look()
    NodeHeartbeat.objects.create(name="there", machine_kind="cpu", seen_at=cast.now)
    Replica.objects.filter(version__number=2).update(node="there")
    cast.serve("v2", 100, failing=60)
    cast.now += timedelta(seconds=3)
    tick(cast.now)
    return rollout_numbered(rollout.pk), Replica.objects.get(version__number=2)


def test_what_fails_is_judged_once_its_node_has_been_heard_of_since(cast: Cast) -> None:
    rollout, _ = canary_that_fails_on_a_node_of_its_own(cast)
    assert (rollout.state, findings(rollout)["errors"][0]) == (_S.CANARY, "insufficient")
    NodeHeartbeat.objects.filter(name="there").update(seen_at=cast.now)
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK


def test_what_failed_with_a_node_that_was_lost_is_never_judged(cast: Cast) -> None:
    rollout, replica = canary_that_fails_on_a_node_of_its_own(cast)
    take_down(replica_id=replica.id, expected=ReplicaState.READY, reason="its node is lost: no heartbeat for 10 s")
    cast.now += timedelta(seconds=5)
    tick(cast.now)
    anew = rollout_numbered(rollout.pk)
    assert (anew.state, anew.measured_since) == (_S.CANARY, cast.now)
    assert "measured anew" in anew.events.latest("id").reason
    cast.agent()
    serve_well(cast)
    cast.look(after_s=90)
    cast.until(rollout, _S.CANARY, share_ppm=500_000)


def test_a_node_that_is_silent_for_long_and_yet_not_lost_hides_nothing(cast: Cast) -> None:
    """Its agent alone is away, and no other node is alive: its engines serve, and are judged."""
    rollout, _ = canary_that_fails_on_a_node_of_its_own(cast)
    cast.now += timedelta(seconds=15)
    tick(cast.now)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK
