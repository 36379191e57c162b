"""A rollout from draft to promoted, and every way back. The sweep really runs; the node agent is the cast's."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import RolloutMoved, RolloutOpen, UnknownVersion
from inference.models import NodeHeartbeat, Pool
from inference.rollout_models import TRANSITIONS, Rollout, RolloutEvent, RolloutState
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import (
    abort_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
    roll_back_rollout,
    start_rollout,
)
from inference.services.rollouts.reading import shown
from tenants.models import AuditEntry
from tests.inference.services.rollout_cast import SCHEDULE, Cast, promoted, serve_well

pytestmark = pytest.mark.django_db
_S = RolloutState


@pytest.fixture
def cast() -> Cast:
    return Cast()


def test_a_draft_does_nothing(cast: Cast) -> None:
    rollout = cast.draft()
    cast.look()
    assert rollout_numbered(rollout.pk).state == _S.DRAFT
    assert cast.told()["candidate"] is None
    assert cast.states(2) == []


def test_a_rollout_goes_from_draft_to_promoted_by_itself(cast: Cast) -> None:
    rollout = cast.started()
    assert (cast.told()["candidate"], cast.told()["candidate_share_ppm"]) == ("v2", 0)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    assert cast.told()["candidate_share_ppm"] == 50_000
    assert (cast.states(1), cast.states(2)) == (["ready", "ready"], ["ready"])
    serve_well(cast)
    cast.look(after_s=90)
    cast.until(rollout, _S.CANARY, share_ppm=500_000)
    serve_well(cast)
    cast.look(after_s=90)
    done = cast.until(rollout, _S.PROMOTED)
    told = cast.told()
    assert (told["stable"], told["candidate"], told["candidate_share_ppm"]) == ("v2", None, 0)
    assert (cast.states(1), cast.states(2)) == (["warm", "warm"], ["ready", "ready"])
    moves = list(RolloutEvent.objects.filter(rollout=rollout, kind="moved").order_by("id").values_list("to_state", flat=True))
    assert moves == ["draft", "staging", "certifying", "canary", "promoted"]
    assert done.promoted_at is not None
    cast.look(after_s=3700)
    assert cast.states(1) == []  # the window is over


def test_no_share_is_given_before_the_replicas_that_it_needs_serve() -> None:
    cast = Cast(replicas=4)
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    serve_well(cast)
    cast.stuck.add(2)
    cast.look(after_s=90)
    cast.look()
    found = rollout_numbered(rollout.pk)
    assert (found.step, found.share_ppm) == (1, 50_000)  # half of four needs two, and one of them starts
    assert found.reason == "before 50 %: 1 of 2 replicas serve"
    cast.stuck.clear()
    cast.until(rollout, _S.CANARY, share_ppm=500_000)


def test_a_step_is_not_left_without_samples_or_before_its_time(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 400)
    cast.serve("v2", 20)
    cast.look(after_s=90)
    found = rollout_numbered(rollout.pk)
    assert (found.step, found.reason) == (0, "insufficient data: 20 of 100 requests")
    cast.serve("v2", 180)
    cast.look()
    assert rollout_numbered(rollout.pk).step == 1


def test_what_was_asked_and_what_is_seen_are_both_kept(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 190)
    cast.serve("v2", 10)
    cast.look()
    verdict = rollout_numbered(rollout.pk).verdict
    assert verdict is not None
    assert verdict["seen"]["share"] == 0.05
    assert verdict["seen"]["low"] < 0.05 < verdict["seen"]["high"]
    assert {finding["gate"] for finding in verdict["findings"]} >= {"errors", "ttft p50", "inter-token p95", "engines"}


BAD: dict[str, Callable[[Cast], None]] = {
    "failing 10 %, made up for by the stable version": lambda cast: cast.serve("v2", 200, failing=20),
    "slow to the first token": lambda cast: cast.serve("v2", 200, ttft_ms=900),
    "slow between tokens": lambda cast: cast.serve("v2", 200, inter_token_ms=120),
    "endless": lambda cast: cast.serve("v2", 200, finish_reason="length"),
}


@pytest.mark.parametrize("bad", BAD)
def test_b130_a_bad_candidate_is_rolled_back_at_the_first_look(cast: Cast, bad: str) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 400)
    BAD[bad](cast)
    breach_at = cast.now
    cast.look()
    found = rollout_numbered(rollout.pk)
    assert found.state == _S.ROLLING_BACK
    assert cast.told()["candidate_share_ppm"] == 0
    assert cast.told()["candidate"] is None
    assert found.breached_at is not None
    assert found.breached_at - breach_at <= timedelta(seconds=30)
    cast.until(rollout, _S.ROLLED_BACK)
    assert (cast.told()["stable"], cast.states(1), cast.states(2)) == ("v1", ["ready", "ready"], [])
    event = RolloutEvent.objects.get(rollout=rollout, to_state=_S.ROLLING_BACK)
    assert event.actor == "system"
    assert event.evidence is not None
    assert event.evidence["outcome"] == "breach"
    assert any(finding["outcome"] == "breach" and finding["candidate_samples"] for finding in event.evidence["findings"])


def test_b130_a_candidate_whose_engines_end_is_rolled_back(cast: Cast) -> None:
    cast.broken[2] = "the engine ended with 1"
    rollout = cast.started()
    cast.until(rollout, _S.ROLLED_BACK)
    assert "3 are too many" in rollout_numbered(rollout.pk).reason
    assert cast.states(2) == []
    assert cast.told()["candidate_share_ppm"] == 0


def test_b130_a_candidate_whose_weights_are_damaged_is_rolled_back_at_once(cast: Cast) -> None:
    cast.hold(2, "golden prompt 1: its token log-probabilities differ")
    rollout = cast.started()
    cast.agent()
    cast.look()
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.share_ppm) == (_S.ROLLING_BACK, 0)
    assert "golden prompt 1" in found.reason


def test_b130_a_candidate_that_never_gets_ready_is_rolled_back_at_its_deadline(cast: Cast) -> None:
    cast.stuck.add(2)
    rollout = cast.started(gates={"start_deadline_s": 120})
    cast.agent()
    cast.look(after_s=100)
    assert rollout_numbered(rollout.pk).state == _S.CERTIFYING
    cast.look(after_s=25)
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK
    assert "not ready after 120 s" in rollout_numbered(rollout.pk).reason


def test_b130_a_canary_that_crashes_is_rolled_back_at_the_next_look(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.broken[2] = "the engine ended with -9"
    cast.agent()
    cast.look()
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK
    assert "none of its replicas serves" in rollout_numbered(rollout.pk).reason


def test_b128_after_a_rollback_and_a_new_canary_only_stable_and_candidate_serve() -> None:
    cast = Cast(versions=3)
    first = cast.started("v2")
    cast.until(first, _S.CANARY, share_ppm=50_000)
    roll_back_rollout(rollout=first, actor="test")
    cast.until(first, _S.ROLLED_BACK)
    second = cast.started("v3")
    cast.until(second, _S.CANARY, share_ppm=50_000)
    assert (cast.told()["stable"], cast.told()["candidate"], cast.told()["pinned"]) == ("v1", "v3", [])
    assert cast.told()["salt"] != str(first.pk)
    assert (cast.states(1), cast.states(2), cast.states(3)) == (["ready", "ready"], [], ["ready"])


def test_b128_what_an_interrupted_rollback_left_is_let_go_by_the_next_look(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    Rollout.objects.filter(pk=rollout.pk).update(state=_S.ROLLED_BACK, share_ppm=0)  # as a crash may have left it
    cast.look()
    cast.look()
    assert cast.states(2) == []


def test_a_paused_rollout_keeps_its_share_goes_no_further_and_is_still_watched(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    pause_rollout(rollout=rollout, actor="test", reason="a look first")
    serve_well(cast)
    cast.look(after_s=90)
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.share_ppm, found.step, found.reason) == (_S.PAUSED, 50_000, 0, "a look first")
    assert cast.told()["candidate_share_ppm"] == 50_000
    cast.serve("v2", 300, failing=100)
    cast.look()
    assert rollout_numbered(rollout.pk).state == _S.ROLLING_BACK


def test_a_resumed_rollout_is_measured_anew(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    pause_rollout(rollout=rollout, actor="test")
    resume_rollout(rollout=rollout_numbered(rollout.pk), actor="test")
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.share_ppm, found.paused_from) == (_S.CANARY, 50_000, "")
    with pytest.raises(RolloutMoved):
        resume_rollout(rollout=found, actor="test")


def test_it_is_promoted_without_waiting_once_replicas_enough_serve() -> None:
    cast = Cast(replicas=3)
    rollout = cast.started()
    with pytest.raises(RolloutMoved):
        promote_rollout(rollout=rollout, actor="test")
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    promote_rollout(rollout=rollout, actor="test", reason="an embargo ends")
    assert cast.told()["stable"] == "v1"  # one of its replicas serves yet
    with pytest.raises(RolloutMoved, match="is promoted already"):  # by another, at the same moment
        promote_rollout(rollout=rollout, actor="ada", reason="so say I")
    assert rollout_numbered(rollout.pk).reason == "an embargo ends"
    assert not shown(rollout_numbered(rollout.pk), now=cast.now)["may"]["promote"]
    cast.until(rollout, _S.PROMOTED)
    assert cast.states(2) == ["ready"] * 3


def test_the_way_back_from_promotion_takes_the_warm_replicas_and_no_gap_is_left(cast: Cast) -> None:
    rollout = promoted(cast)
    roll_back_rollout(rollout=rollout, actor="test", reason="customers complain")
    assert cast.told()["stable"] == "v2"  # until replicas of v1 are in rotation
    cast.agent()
    cast.look()
    assert cast.told()["stable"] == "v1"
    assert cast.states(1) == ["ready", "ready"]
    cast.until(rollout, _S.ROLLED_BACK)
    assert cast.states(2) == []
    assert "customers complain" in rollout_numbered(rollout.pk).reason


def test_the_way_back_is_shut_when_the_window_is_over(cast: Cast) -> None:
    rollout = promoted(cast, window_s=60)
    Rollout.objects.filter(pk=rollout.pk).update(promoted_at=timezone.now() - timedelta(seconds=61))
    with pytest.raises(RolloutMoved, match="not kept warm"):
        roll_back_rollout(rollout=rollout, actor="test")
    assert cast.told()["stable"] == "v2"


def test_a_promoted_version_that_dies_whole_gives_way_to_the_one_that_is_kept_warm(cast: Cast) -> None:
    rollout = promoted(cast)
    cast.broken[2] = "the engine ended with -9"
    cast.agent()
    cast.look()
    cast.look()
    assert cast.told()["stable"] == "v1"
    assert rollout_numbered(rollout.pk).state in {_S.ROLLING_BACK, _S.ROLLED_BACK}


def test_an_aborted_rollout_leaves_nothing(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    abort_rollout(rollout=rollout, actor="test")
    cast.until(rollout, _S.ABORTED)
    assert (cast.states(2), cast.told()["stable"]) == ([], "v1")
    draft = cast.draft()
    abort_rollout(rollout=draft, actor="test")
    assert rollout_numbered(draft.pk).state == _S.ABORTED


def test_one_rollout_of_a_model_is_open_at_a_time() -> None:
    cast = Cast(versions=3)
    cast.draft("v2")
    with pytest.raises(RolloutOpen):
        cast.draft("v3")
    assert Rollout.objects.count() == 1


def test_it_begins_at_its_time(cast: Cast) -> None:
    rollout = cast.draft(scheduled_for=cast.now + timedelta(minutes=10))
    cast.look(after_s=590)
    assert rollout_numbered(rollout.pk).state == _S.DRAFT
    cast.look(after_s=20)
    assert rollout_numbered(rollout.pk).state == _S.STAGING


def test_without_room_it_waits_and_says_so(cast: Cast) -> None:
    NodeHeartbeat.objects.update(max_replicas=2)
    rollout = cast.started()
    cast.look()
    found = rollout_numbered(rollout.pk)
    assert found.state == _S.STAGING
    assert "no node has room" in found.reason
    NodeHeartbeat.objects.update(max_replicas=3)
    cast.until(rollout, _S.CANARY)


def test_a_model_at_zero_gets_one_replica_of_the_candidate() -> None:
    cast = Cast(replicas=0)
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    assert (cast.states(1), cast.states(2)) == ([], ["ready"])


WRONG: tuple[dict[str, Any], ...] = (
    {"steps": []},
    {"steps": [{"share_ppm": 0, "min_duration_s": 1, "min_samples": 1}]},
    {"steps": [{"share_ppm": 1_000_000, "min_duration_s": 1, "min_samples": 1}]},
    {"steps": [{"share_ppm": share, "min_duration_s": 1, "min_samples": 1} for share in (20, 10)]},
    {"steps": [{"share_ppm": 5.5, "min_duration_s": 1, "min_samples": 1}]},
    {"steps": [{"share_ppm": 10}]},
    {"steps": "5"},
    {**SCHEDULE, "speed": 1},
    {**SCHEDULE, "shadow": {"share_ppm": 10}},
)


@pytest.mark.parametrize("schedule", WRONG)
def test_a_schedule_that_cannot_be_run_is_refused(cast: Cast, schedule: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        cast.draft(schedule=schedule)
    assert not Rollout.objects.exists()


@pytest.mark.parametrize(
    "gates",
    [
        {"no_such": 1},
        {"max_error_rise": 2},
        {"max_error_rise": float("nan")},
        {"confidence": 0.4},
        {"confidence": 0.99, "breach_confidence": 0.9},
        {"ttft_p50_ratio": 0.5},
        {"confidence": None},
    ],
)
def test_gates_that_say_nothing_are_refused(cast: Cast, gates: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        cast.draft(gates=gates)


def test_the_stable_version_and_unknown_ones_are_no_candidates(cast: Cast) -> None:
    with pytest.raises(InvalidInput, match="stable version already"):
        cast.draft("v1")
    for label in ("v3", "2.0", "", "v0", "latest"):
        with pytest.raises(UnknownVersion):
            cast.draft(label)


def test_moves_that_the_table_does_not_have_are_refused(cast: Cast) -> None:
    rollout = cast.draft()
    for act in (pause_rollout, resume_rollout, promote_rollout, roll_back_rollout):
        with pytest.raises(RolloutMoved):
            act(rollout=rollout, actor="test")
    assert rollout_numbered(rollout.pk).state == _S.DRAFT
    assert not AuditEntry.objects.filter(action__in=["rollout.pause", "rollout.promote"]).exists()
    assert all(TRANSITIONS[state] == frozenset() for state in (_S.ROLLED_BACK, _S.ABORTED))


def test_what_happened_is_never_changed_or_deleted(cast: Cast) -> None:
    cast.draft()
    with pytest.raises(TypeError):
        RolloutEvent.objects.all().delete()
    with pytest.raises(TypeError):
        RolloutEvent.objects.update(reason="")


def test_a_draft_from_a_version_that_is_not_stable_any_more_does_not_start() -> None:
    cast = Cast(versions=3)
    late = cast.draft("v2")
    Pool.objects.update(version=cast.version(3))
    with pytest.raises(RolloutMoved, match="v3 is stable now"):
        start_rollout(rollout=late, actor="test")
