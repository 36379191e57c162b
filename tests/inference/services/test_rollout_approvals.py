"""The two-person rule: nobody promotes alone what they made; and nobody is kept from taking it back."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from inference.errors import RolloutMoved, SecondPersonNeeded
from inference.rollout_models import Rollout, RolloutEvent, RolloutState
from inference.services.rollouts.approving import approve_rollout
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import create_rollout, promote_rollout, roll_back_rollout, start_rollout
from tenants.models import AuditEntry
from tenants.services.members import ensure_operator
from tests.inference.services.rollout_cast import STEP, Cast
from tests.tenants.api.cast import Api, code_of
from workers.models import Mail

pytestmark = pytest.mark.django_db
_S = RolloutState
ONE_STEP = {"steps": [{"share_ppm": 50_000, **STEP}], "shadow": None}
ADA, BOB = "operator:ada", "operator:bob"


@pytest.fixture
def is_on(settings: Any) -> None:
    settings.TWO_PERSON_RULE = True


@pytest.fixture
def cast() -> Cast:
    return Cast()


def made_by_ada(cast: Cast) -> Rollout:
    rollout = create_rollout(public_id="m", to="v2", actor=ADA, schedule=ONE_STEP)
    start_rollout(rollout=rollout, actor=ADA)
    return rollout


def in_canary(cast: Cast) -> Rollout:
    return cast.until(made_by_ada(cast), _S.CANARY)


def test_without_the_rule_one_person_promotes_and_there_is_nothing_to_approve(cast: Cast) -> None:
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY)
    with pytest.raises(RolloutMoved, match="the two-person rule is off"):
        approve_rollout(rollout=rollout, actor=BOB)
    promote_rollout(rollout=rollout, actor=ADA)
    cast.until(rollout, _S.PROMOTED)


def test_a_rollout_that_passed_all_its_steps_keeps_its_last_share_until_another_operator_approves(
    cast: Cast, is_on: None
) -> None:
    ensure_operator(username="bob", password="x")
    operator = ensure_operator(username="ada", password="x")
    operator.email = "ada@example.com"
    operator.save()
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 400)
    cast.serve("v2", 200)
    cast.look(after_s=90)
    for _ in range(3):
        cast.look()
    found = rollout_numbered(rollout.pk)
    assert (found.state, found.share_ppm) == (_S.CANARY, 50_000)
    assert found.reason == "all gates pass; an operator other than ada has to approve it"
    assert RolloutEvent.objects.filter(rollout=rollout, reason="approval is asked for").count() == 1
    assert Mail.objects.count() == 1, "told once"
    with pytest.raises(SecondPersonNeeded, match="another operator"):
        approve_rollout(rollout=rollout, actor=ADA)
    cast.look()
    assert rollout_numbered(rollout.pk).state == _S.CANARY
    approve_rollout(rollout=rollout, actor=BOB, reason="read the evals")
    done = cast.until(rollout, _S.PROMOTED)
    assert (done.approved_by, done.created_by) == (BOB, ADA)
    entry = AuditEntry.objects.get(action="rollout.approve")
    assert entry.after is not None
    assert (entry.actor, entry.after["made_by"], entry.after["reason"]) == (BOB, ADA, "read the evals")


@pytest.mark.parametrize("actor", [ADA, "command:root", "system"])
def test_neither_its_maker_nor_somebody_without_a_name_promotes_it_early(cast: Cast, is_on: None, actor: str) -> None:
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    events = RolloutEvent.objects.count()
    with pytest.raises(SecondPersonNeeded):
        promote_rollout(rollout=rollout, actor=actor)
    found = rollout_numbered(rollout.pk)
    assert (found.step, found.approved_by, RolloutEvent.objects.count()) == (0, "", events)


def test_who_promotes_what_another_made_has_approved_it(cast: Cast, is_on: None) -> None:
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    promote_rollout(rollout=rollout, actor=BOB)
    assert cast.until(rollout, _S.PROMOTED).approved_by == BOB


def test_what_was_approved_its_maker_may_promote_early(cast: Cast, is_on: None) -> None:
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    approve_rollout(rollout=rollout, actor=BOB)
    with pytest.raises(RolloutMoved, match="operator:bob has approved"):
        approve_rollout(rollout=rollout, actor="operator:eve")
    promote_rollout(rollout=rollout, actor=ADA)
    cast.until(rollout, _S.PROMOTED)


def test_a_rule_that_came_after_the_last_step_holds(cast: Cast, settings: Any) -> None:
    rollout = made_by_ada(cast)
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    promote_rollout(rollout=rollout, actor=ADA)
    settings.TWO_PERSON_RULE = True
    for _ in range(4):
        cast.look()
    assert rollout_numbered(rollout.pk).state == _S.CANARY
    approve_rollout(rollout=rollout, actor=BOB)
    cast.until(rollout, _S.PROMOTED)


def test_its_maker_takes_it_back_alone_and_a_breach_waits_for_nobody(cast: Cast, is_on: None) -> None:
    rollout = in_canary(cast)
    roll_back_rollout(rollout=rollout, actor=ADA)
    cast.until(rollout, _S.ROLLED_BACK)
    other = made_by_ada(cast)
    cast.until(other, _S.CANARY, share_ppm=50_000)
    cast.serve("v1", 400)
    cast.serve("v2", 100, failing=60)
    cast.look()
    assert rollout_numbered(other.pk).state == _S.ROLLING_BACK


def test_nothing_is_approved_before_an_engine_of_it_was_certified(cast: Cast, is_on: None) -> None:
    rollout = made_by_ada(cast)
    with pytest.raises(RolloutMoved, match="no replica of it is certified"):
        approve_rollout(rollout=rollout, actor=BOB)


def test_over_rest_a_second_operator_approves_and_the_first_is_refused(cast: Cast, is_on: None) -> None:
    ada, bob = (Api(user=ensure_operator(username=name, password="x")) for name in ("ada", "bob"))
    rollout = in_canary(cast)
    assert ada.get(f"operator/rollouts/{rollout.pk}/").json()["may"]["approve"] is True
    refused = ada.post(f"operator/rollouts/{rollout.pk}/approve/", {"version": "v2"})
    assert (refused.status_code, code_of(refused)) == (403, "second_person_needed")
    assert code_of(bob.post(f"operator/rollouts/{rollout.pk}/approve/", {"version": "v1"})) == "invalid_value"
    done = bob.post(f"operator/rollouts/{rollout.pk}/approve/", {"version": "v2"}).json()
    assert (done["approved_by"], done["may"]["approve"]) == (BOB, False)


def test_the_page_offers_approval_to_all_but_its_maker(cast: Cast, is_on: None) -> None:
    rollout, seen = in_canary(cast), {}
    for name in ("ada", "bob"):
        client = Client()
        client.force_login(ensure_operator(username=name, password="x"))
        seen[name] = client.get(f"/operator/rollouts/{rollout.pk}/").content.decode()
        posted = {"confirm": "m v2", "reason": "fine"}
        told = client.post(f"/operator/rollouts/{rollout.pk}/approve/", posted, follow=True).content.decode()
        assert ("Approved: m v2" in told) == (name == "bob")
    offer, promote = 'data-dialog="approve"', 'data-dialog="promote"'
    assert (offer in seen["ada"], promote in seen["ada"]) == (False, False)
    assert (offer in seen["bob"], promote in seen["bob"]) == (True, True)
    assert rollout_numbered(rollout.pk).approved_by == BOB


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def run(*words: str, password: str = "") -> str:
        monkeypatch.setattr("sys.stdin", StringIO(f"{password}\n"))
        out = StringIO()
        call_command("rollout", *words, stdout=out)
        return out.getvalue()

    return run


def test_a_command_names_the_operator_and_asks_for_the_password(cast: Cast, is_on: None, typed: Callable[..., str]) -> None:
    for name in ("ada", "bob"):
        ensure_operator(username=name, password=f"{name}s own")
    with pytest.raises(CommandError, match="--operator"):
        typed("create", "m", "--to", "v2")
    typed("create", "m", "--to", "v2", "--start", "--operator", "ada", password="adas own")
    rollout = Rollout.objects.get()
    assert rollout.created_by == ADA
    cast.until(rollout, _S.CANARY)
    number = str(rollout.pk)
    for words, password in (
        (("--operator", "bob"), "guessed"),
        (("--operator", "nobody"), "guessed"),
        (("--operator", "ada"), "adas own"),
        ((), ""),
    ):
        with pytest.raises(CommandError):
            typed("approve", number, *words, password=password)
    assert rollout_numbered(number).approved_by == ""
    typed("approve", number, "--operator", "bob", password="bobs own")
    assert rollout_numbered(number).approved_by == BOB
