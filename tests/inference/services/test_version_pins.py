"""Tenants that stay on a version until it retires."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import UnknownVersion
from inference.models import ControlChange, ModelVersion
from inference.rollout_models import RolloutState, VersionPin
from inference.services.rollouts.operating import promote_rollout
from inference.services.rollouts.pin_reads import pinnable_versions
from inference.services.rollouts.pins import pin_version, unpin_version
from inference.services.rollouts.retiring import set_retirement
from tenants.models import AuditEntry, Tenant
from tenants.services.terms import set_shadowing
from tests.inference.services.rollout_cast import Cast
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db
_S = RolloutState


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def acme() -> Tenant:
    return tenant_with("acme")


def terms(tenant: Tenant) -> dict[str, Any]:
    change = ControlChange.objects.filter(kind="terms", key=str(tenant.id)).latest("id")
    assert change.payload is not None
    found: dict[str, Any] = change.payload
    return found


def promote(cast: Cast) -> None:
    rollout = cast.started()
    cast.until(rollout, _S.CANARY, share_ppm=50_000)
    promote_rollout(rollout=rollout, actor="test")
    cast.until(rollout, _S.PROMOTED)


def test_who_is_pinned_to_the_stable_version_stays_on_it_when_another_is_promoted(cast: Cast, acme: Tenant) -> None:
    pin_version(tenant=acme, public_id="m", label="v1", actor="test", is_self_service=True)
    assert terms(acme)["pins"] == {"m": "v1"}
    promote(cast)
    assert (cast.told()["stable"], cast.told()["pinned"]) == ("v2", ["v1"])
    assert cast.states(1) == ["ready", "warm"]  # one serves those who stay, the other waits for a way back
    cast.look(after_s=4000)
    assert cast.states(1) == ["ready"]


def test_a_version_that_nobody_stays_on_any_more_goes(cast: Cast, acme: Tenant) -> None:
    pin_version(tenant=acme, public_id="m", label="v1", actor="test")
    promote(cast)
    cast.look(after_s=4000)
    assert unpin_version(tenant=acme, public_id="m", actor="test")
    assert not unpin_version(tenant=acme, public_id="m", actor="test")
    assert terms(acme)["pins"] == {}
    cast.look()
    assert (cast.states(1), cast.told()["pinned"]) == ([], [])


def test_an_operators_pin_to_a_version_that_does_not_serve_is_in_force_once_it_does(cast: Cast, acme: Tenant) -> None:
    pin = pin_version(tenant=acme, public_id="m", label="v2", actor="test")
    assert not pin.is_in_force
    assert terms(acme)["pins"] == {}
    cast.agent()
    cast.look()
    assert terms(acme)["pins"] == {"m": "v2"}
    assert (cast.told()["stable"], cast.told()["pinned"], cast.states(2)) == ("v1", ["v2"], ["ready"])


def test_a_tenant_itself_starts_no_other_version(cast: Cast, acme: Tenant) -> None:
    with pytest.raises(InvalidInput, match="not served"):
        pin_version(tenant=acme, public_id="m", label="v2", actor="test", is_self_service=True)
    cast.started()  # a candidate is not for choosing either
    with pytest.raises(InvalidInput):
        pin_version(tenant=acme, public_id="m", label="v2", actor="test", is_self_service=True)
    with pytest.raises(UnknownVersion):
        pin_version(tenant=acme, public_id="m", label="v9", actor="test")
    assert not VersionPin.objects.exists()
    assert [str(version) for version in pinnable_versions(cast.pool)] == ["m v1"]


def test_on_its_day_a_version_retires_and_its_tenants_go_with_the_stable_one(cast: Cast, acme: Tenant) -> None:
    pin_version(tenant=acme, public_id="m", label="v1", actor="test")
    promote(cast)
    set_retirement(public_id="m", label="v1", retires_at=cast.now + timedelta(days=1), actor="test")
    cast.look()
    assert terms(acme)["pins"] == {"m": "v1"}
    cast.look(after_s=24 * 3600)
    assert terms(acme)["pins"] == {}
    cast.look()
    assert (cast.states(1), cast.told()["pinned"]) == ([], [])
    assert ModelVersion.objects.get(number=1).retired_at is not None
    with pytest.raises(InvalidInput, match="retired"):
        pin_version(tenant=acme, public_id="m", label="v1", actor="test")
    with pytest.raises(InvalidInput, match="retired"):
        cast.draft("v1")
    assert AuditEntry.objects.filter(action="version.unpin", tenant=acme, actor="system").count() == 1


def test_the_stable_version_and_those_of_an_open_rollout_do_not_retire(cast: Cast) -> None:
    soon = timezone.now() + timedelta(days=1)
    with pytest.raises(InvalidInput, match="stable"):
        set_retirement(public_id="m", label="v1", retires_at=soon, actor="test")
    with pytest.raises(InvalidInput, match="ahead"):
        set_retirement(public_id="m", label="v2", retires_at=timezone.now(), actor="test")
    cast.draft()
    with pytest.raises(InvalidInput, match="open rollout"):
        set_retirement(public_id="m", label="v2", retires_at=soon, actor="test")
    assert not ModelVersion.objects.exclude(retires_at=None).exists()


def test_a_retirement_is_taken_back(cast: Cast) -> None:
    set_retirement(public_id="m", label="v2", retires_at=timezone.now() + timedelta(days=1), actor="test")
    set_retirement(public_id="m", label="v2", retires_at=None, actor="test")
    cast.look(after_s=2 * 24 * 3600)
    assert ModelVersion.objects.get(number=2).retired_at is None


def test_a_tenant_may_keep_its_requests_from_being_mirrored(acme: Tenant) -> None:
    set_shadowing(tenant=acme, is_allowed=False, actor="test")
    assert terms(acme)["no_shadow"] is True
    set_shadowing(tenant=acme, is_allowed=False, actor="test")
    set_shadowing(tenant=acme, is_allowed=True, actor="test")
    assert terms(acme)["no_shadow"] is False
    assert AuditEntry.objects.filter(action="tenant.set_shadowing").count() == 2
