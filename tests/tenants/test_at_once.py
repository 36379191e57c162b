"""What several people do at the same moment: one of them does it, the others are told, and gateways know the end of it."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from inference.models import ControlChange
from tenants.errors import AlreadyRotated, NotAllowed, UnknownInvitation, UnknownKey
from tenants.models import ApiKey, AuditEntry, Limit, LimitKind, Membership, Tenant
from tenants.services import keys, members, webhooks
from tenants.services.holding import hold_tenant
from tenants.services.invitations import accept_invitation, invite
from tenants.services.key_settings import KeySettings
from tenants.services.terms import set_limits
from tests.tenants.cast import person, tenant_with

pytestmark = pytest.mark.django_db(transaction=True)
NUM = 4


def at_once(*jobs: Callable[[], Any]) -> Counter[str]:
    """Run each in a thread and connection of its own; how they ended: "done", or the name of what was raised."""
    barrier, ends = threading.Barrier(len(jobs)), []

    def run(job: Callable[[], Any]) -> None:
        try:
            barrier.wait(10)
            job()
            ends.append("done")
        except Exception as error:  # noqa: BLE001  whatever it is, it is how the job ended
            ends.append(type(error).__name__)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return Counter(ends)


def mine(tenant: Tenant) -> Tenant:
    """As another process has it."""
    return Tenant.objects.get(pk=tenant.pk)


@pytest.fixture
def acme() -> Tenant:
    return tenant_with("acme", owner=person("ann"), admin=person("bob"))


def issued(acme: Tenant) -> ApiKey:
    return keys.issue_api_key(tenant=acme, name="ci", actor="test").key


@pytest.mark.parametrize("overlap_h", [0, 24])
def test_n2_a_key_rotated_several_times_at_once_is_rotated_once(acme: Tenant, overlap_h: int) -> None:
    old = issued(acme)

    def rotate() -> None:
        keys.rotate_api_key(tenant=mine(acme), key_id=old.id, overlap_h=overlap_h, actor="test")

    assert at_once(*[rotate] * NUM) == {"done": 1, AlreadyRotated.__name__: NUM - 1}
    assert ApiKey.objects.for_tenant(acme).filter(replaces=old).count() == 1
    with pytest.raises(AlreadyRotated):
        rotate()


def test_n2_switching_and_revoking_at_once_are_done_once(acme: Tenant) -> None:
    key = issued(acme)
    disable = [lambda: keys.disable_api_key(tenant=mine(acme), key_id=key.id, actor="test")] * NUM
    assert at_once(*disable) == {"done": NUM}
    revoke = [lambda: keys.revoke_api_key(key_id=key.id, actor="test")] * NUM
    assert at_once(*revoke) == {"done": NUM}
    assert (
        AuditEntry.objects.filter(action="key.disable").count() == AuditEntry.objects.filter(action="key.revoke").count() == 1
    )


def test_n2_a_key_that_is_revoked_while_it_is_changed_stays_revoked_at_the_gateways(acme: Tenant) -> None:
    for _ in range(5):
        key = issued(acme)
        ends = at_once(
            partial(keys.revoke_api_key, key_id=key.id, actor="test"),
            partial(keys.change_api_key, tenant=mine(acme), key_id=key.id, settings=KeySettings("b"), actor="test"),
            partial(keys.disable_api_key, tenant=mine(acme), key_id=key.id, actor="test"),
        )
        assert set(ends) <= {"done", UnknownKey.__name__}
        assert ControlChange.objects.filter(kind="key", key=key.id).latest("id").payload is None


def test_n2_an_invitation_is_accepted_once_and_ownership_given_once(acme: Tenant) -> None:
    cy = person("cy")
    token = invite(tenant=acme, email=cy.email, role="viewer", actor="test", actor_role="owner").token
    accept = [lambda: accept_invitation(token=token, user=cy, verified_emails=[cy.email])] * NUM
    assert at_once(*accept) == {"done": 1, UnknownInvitation.__name__: NUM - 1}
    ann, bob = (Membership.objects.for_tenant(acme).get(user__username=name).user for name in ("ann", "bob"))
    give = [lambda: members.transfer_ownership(tenant=mine(acme), owner=ann, to=bob, actor="test")] * NUM
    assert at_once(*give) == {"done": 1, NotAllowed.__name__: NUM - 1}
    roles = dict(Membership.objects.for_tenant(acme).values_list("user__username", "role"))
    assert roles == {"ann": "admin", "bob": "owner", "cy": "viewer"}


def test_n2_limits_set_at_once_are_all_set_and_told(acme: Tenant) -> None:
    def setter(kind: LimitKind) -> Callable[[], Any]:
        return lambda: set_limits(tenant=mine(acme), limits={kind: 5}, actor="test")

    assert at_once(*[setter(kind) for kind in (LimitKind.REQUESTS, LimitKind.REQUESTS, LimitKind.CONCURRENCY)]) == {"done": 3}
    assert Limit.objects.for_tenant(acme).count() == 2
    told = ControlChange.objects.filter(kind="terms", key=str(acme.id)).latest("id").payload
    assert told is not None
    assert {limit["kind"] for limit in told["limits"]} >= {LimitKind.REQUESTS.value, LimitKind.CONCURRENCY.value}


def test_n2_a_webhook_removed_several_times_at_once_is_removed_once(acme: Tenant) -> None:
    added = webhooks.add_endpoint(tenant=acme, url="https://example.com/", events=["budget.reached"], actor="test").endpoint
    remove = [lambda: webhooks.remove_endpoint(tenant=mine(acme), endpoint_id=str(added.id), actor="test")] * NUM
    assert at_once(*remove) == {"done": 1, "UnknownWebhook": NUM - 1}


def test_who_holds_a_tenant_sees_it_as_it_is_now(acme: Tenant) -> None:
    stale = mine(acme)
    set_limits(tenant=acme, limits={}, time_zone="Asia/Tokyo", actor="test")
    with transaction.atomic():
        hold_tenant(stale)
    assert stale.time_zone == "Asia/Tokyo"
