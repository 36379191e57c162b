from datetime import timedelta

import pytest
from django.db import models
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from tenants.errors import AlreadyMember, NotAllowed, TooManyInvitations, UnknownInvitation, WrongPerson
from tenants.models import AuditEntry, Invitation, Tenant, User
from tenants.services import invitations
from tenants.services.invitations import (
    MAX_MAILS_AN_HOUR,
    MAX_MAILS_TO_ONE_AN_HOUR,
    MAX_OPEN,
    accept_invitation,
    invitation_of_token,
    invite,
    resend_invitation,
    revoke_invitation,
)
from tests.tenants.cast import person, role_of, tenant_with
from workers.models import Mail, OutboxEntry

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return tenant_with("acme", owner=person("ann"))


@pytest.fixture
def bob() -> User:
    return person("bob")


def asked(tenant: Tenant, email: str = "bob@example.com", role: str = "developer") -> tuple[Invitation, str]:
    made = invite(tenant=tenant, email=email, role=role, actor="user:ann", actor_role="owner")
    return made.invitation, made.token


def test_an_invitation_is_mailed_with_its_link_and_kept_as_a_hash(acme: Tenant) -> None:
    _, token = asked(acme, email=" Bob@Example.com ")
    mail = Mail.objects.get()
    assert (mail.to, token in mail.text) == ("bob@example.com", True)
    assert OutboxEntry.objects.get().ids == {"mail": mail.id}
    assert token not in str(list(Invitation.unscoped.values())) + str(list(AuditEntry.objects.values()))


def test_who_was_invited_becomes_a_member_once(acme: Tenant, bob: User) -> None:
    _, token = asked(acme)
    assert invitation_of_token(token).tenant == acme
    accept_invitation(token=token, user=bob, verified_emails=["BOB@example.com"])
    assert role_of(acme, bob) == "developer"
    with pytest.raises(UnknownInvitation):
        accept_invitation(token=token, user=person("carl"), verified_emails=["bob@example.com"])


def test_another_persons_address_is_refused_and_nothing_changes(acme: Tenant, bob: User) -> None:
    invitation, token = asked(acme, email="someone@example.com")
    for emails in (["bob@example.com"], []):
        with pytest.raises(WrongPerson):
            accept_invitation(token=token, user=bob, verified_emails=emails)
    invitation.refresh_from_db(from_queryset=Invitation.unscoped.all())
    assert (role_of(acme, bob), invitation.accepted_at) == (None, None)


def test_a_revoked_an_expired_and_an_invented_link_lead_nowhere(acme: Tenant, bob: User) -> None:
    invitation, token = asked(acme)
    revoke_invitation(tenant=acme, invitation_id=str(invitation.id), actor="user:ann")
    late, late_token = asked(acme)
    Invitation.unscoped.filter(pk=late.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    for each in (token, late_token, "", "nonsense", "\0"):
        with pytest.raises(UnknownInvitation):
            accept_invitation(token=each, user=bob, verified_emails=["bob@example.com"])
    assert role_of(acme, bob) is None


def test_resending_makes_a_new_link_and_the_old_one_stops(acme: Tenant, bob: User) -> None:
    invitation, token = asked(acme)
    again = resend_invitation(tenant=acme, invitation_id=str(invitation.id), actor="user:ann", actor_role="owner")
    with pytest.raises(UnknownInvitation):
        invitation_of_token(token)
    assert invitation_of_token(again.token).pk == invitation.pk
    assert Mail.objects.count() == 2


def test_inviting_again_replaces_the_open_invitation(acme: Tenant) -> None:
    _, token = asked(acme)
    _, newer = asked(acme, role="viewer")
    assert invitation_of_token(newer).role == "viewer"
    with pytest.raises(UnknownInvitation):
        invitation_of_token(token)
    assert Invitation.objects.for_tenant(acme).filter(revoked_at=None).count() == 1


def test_an_admin_invites_no_owner_and_members_are_not_invited(acme: Tenant) -> None:
    with pytest.raises(NotAllowed):
        invite(tenant=acme, email="x@example.com", role="owner", actor="user:adam", actor_role="admin")
    with pytest.raises(AlreadyMember):
        asked(acme, email="ANN@example.com")
    assert not Invitation.unscoped.exists() and not Mail.objects.exists()


@pytest.mark.parametrize(("email", "role"), [("no address", "viewer"), ("a@b", "viewer"), ("a@example.com", "emperor")])
def test_nonsense_is_refused(acme: Tenant, email: str, role: str) -> None:
    with pytest.raises(InvalidInput):
        asked(acme, email=email, role=role)


def test_invitations_of_another_tenant_are_not_found(acme: Tenant) -> None:
    invitation, _ = asked(acme)
    globex = tenant_with("globex", owner=person("gus"))
    with pytest.raises(UnknownInvitation):
        revoke_invitation(tenant=globex, invitation_id=str(invitation.id), actor="user:gus")
    with pytest.raises(UnknownInvitation):
        resend_invitation(tenant=globex, invitation_id="no uuid", actor="user:gus", actor_role="owner")
    assert Invitation.objects.for_tenant(acme).get().revoked_at is None


def test_n11_open_invitations_are_capped_and_a_revoked_one_makes_room(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MAX_MAILS_AN_HOUR", 1000)
    made = [asked(acme, email=f"p{number}@example.com")[0] for number in range(MAX_OPEN)]
    mails = Mail.objects.count()
    with pytest.raises(Conflict):
        asked(acme, email="one-more@example.com")
    assert (Mail.objects.count(), invitations_open(acme)) == (mails, MAX_OPEN)
    asked(acme, email="p0@example.com")  # one that is replaced counts once
    revoke_invitation(tenant=acme, invitation_id=str(made[1].id), actor="test")
    asked(acme, email="one-more@example.com")


def test_n11_a_refused_invitation_leaves_the_one_before_open(acme: Tenant) -> None:
    for _ in range(MAX_MAILS_TO_ONE_AN_HOUR):
        invitation, token = asked(acme)
    with pytest.raises(TooManyInvitations):
        asked(acme)
    assert invitation_of_token(token) == invitation


def test_n11_one_address_is_mailed_a_few_times_an_hour_sent_again_or_not(acme: Tenant) -> None:
    invitation, _ = asked(acme)
    for _ in range(MAX_MAILS_TO_ONE_AN_HOUR - 1):
        resend_invitation(tenant=acme, invitation_id=str(invitation.id), actor="test", actor_role="owner")
    with pytest.raises(TooManyInvitations) as caught:
        resend_invitation(tenant=acme, invitation_id=str(invitation.id), actor="test", actor_role="owner")
    assert caught.value.retry_after_s is not None and 3500 < caught.value.retry_after_s <= 3600
    assert Mail.objects.count() == MAX_MAILS_TO_ONE_AN_HOUR
    asked(acme, email="another@example.com")
    models.QuerySet(AuditEntry).update(at=timezone.now() - timedelta(hours=1))
    asked(acme)


def test_n11_a_tenant_mails_so_many_an_hour_and_another_one_is_not_held_up(acme: Tenant) -> None:
    for number in range(MAX_MAILS_AN_HOUR):
        made, _ = asked(acme, email=f"p{number}@example.com")
        revoke_invitation(tenant=acme, invitation_id=str(made.id), actor="test")
    with pytest.raises(TooManyInvitations):
        asked(acme, email="one-more@example.com")
    assert Mail.objects.count() == MAX_MAILS_AN_HOUR
    asked(tenant_with("globex"), email="one-more@example.com")


def invitations_open(tenant: Tenant) -> int:
    return Invitation.objects.for_tenant(tenant).filter(revoked_at=None, accepted_at=None).count()
