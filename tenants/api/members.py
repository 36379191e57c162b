"""Members and invitations."""

from typing import Any
from uuid import UUID

from allauth.account.models import EmailAddress
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import HeadwayView, TenantView
from tenants.api.errors import SessionNeeded
from tenants.api.tenants import member_named
from tenants.models import ApiKey, Invitation, Membership
from tenants.services.invitations import accept_invitation, invite, resend_invitation, revoke_invitation
from tenants.services.members import change_role, remove_member


class Members(TenantView):
    actions = {"GET": Action.VIEW_MEMBERS}

    @extend_schema(operation_id="members_list", responses=shapes.MemberShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        rows = Membership.objects.for_tenant(self.standing.tenant).select_related("user")
        return self.page(rows, shapes.MemberShape, ordering=("id",))


class OneMember(TenantView):
    actions = {"PATCH": Action.MANAGE_MEMBERS, "DELETE": Action.MANAGE_MEMBERS}

    @extend_schema(operation_id="members_change", request=shapes.RoleChange, responses=shapes.MemberShape)
    def patch(self, _request: Request, tenant: str, user_id: int) -> Response:
        """Give another role. Only owners make and unmake owners; the last owner stays one."""
        user = member_named(self.standing.tenant, user_id)
        assert user is not None
        who = {"actor": self.standing.actor, "actor_role": self.standing.role}
        member = change_role(tenant=self.standing.tenant, user=user, role=self.read(shapes.RoleChange)["role"], **who)
        return Response(shapes.MemberShape(member).data)

    @extend_schema(operation_id="members_remove", parameters=[shapes.Removal], responses={204: None})
    def delete(self, _request: Request, tenant: str, user_id: int) -> Response:
        """Their keys are revoked, or handed to another member."""
        user = member_named(self.standing.tenant, user_id)
        taker = member_named(self.standing.tenant, self.read_query(shapes.Removal).get("hand_keys_to"))
        assert user is not None
        who = {"actor": self.standing.actor, "actor_role": self.standing.role}
        remove_member(tenant=self.standing.tenant, user=user, hand_keys_to=taker, **who)
        return Response(status=204)


class Invitations(TenantView):
    actions = {"GET": Action.VIEW_MEMBERS, "POST": Action.MANAGE_MEMBERS}

    @extend_schema(operation_id="invitations_list", responses=shapes.InvitationShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        rows = Invitation.objects.for_tenant(self.standing.tenant).select_related("invited_by")
        return self.page(rows, shapes.InvitationShape, ordering=("-created_at",), prepare=invitation_values)

    @extend_schema(operation_id="invitations_send", request=shapes.NewInvitation, responses={201: shapes.InvitationShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """Mail an invitation; it works for a week, for that address only. An open one to the same address is replaced."""
        asked, standing = self.read(shapes.NewInvitation), self.standing
        who = {"actor": standing.actor, "actor_role": standing.role}
        made = invite(tenant=standing.tenant, email=asked["email"], role=asked["role"], by=standing.user, **who)
        return Response(shapes.InvitationShape(invitation_values(made.invitation)).data, status=201)


class OneInvitation(TenantView):
    actions = {"DELETE": Action.MANAGE_MEMBERS}

    @extend_schema(operation_id="invitations_revoke", responses={204: None})
    def delete(self, _request: Request, tenant: str, invitation_id: UUID) -> Response:
        revoke_invitation(tenant=self.standing.tenant, invitation_id=str(invitation_id), actor=self.standing.actor)
        return Response(status=204)


class ResendInvitation(TenantView):
    actions = {"POST": Action.MANAGE_MEMBERS}

    @extend_schema(operation_id="invitations_resend", request=None, responses=shapes.InvitationShape)
    def post(self, _request: Request, tenant: str, invitation_id: UUID) -> Response:
        """Again, with a new link and a new week; the old link stops working."""
        who = {"actor": self.standing.actor, "actor_role": self.standing.role}
        sent = resend_invitation(tenant=self.standing.tenant, invitation_id=str(invitation_id), **who)
        return Response(shapes.InvitationShape(invitation_values(sent.invitation)).data)


class AcceptInvitation(HeadwayView):
    """Of no tenant yet: whoever has the token, and is the person it was mailed to."""

    @extend_schema(operation_id="invitations_accept", request=shapes.Acceptance, responses={201: shapes.JoinedShape})
    def post(self, request: Request) -> Response:
        """Join with the token of an invitation's link. Asks for a session whose verified address was invited; no key may."""
        if isinstance(request.auth, ApiKey):
            raise SessionNeeded("An invitation is for a person: log in, and accept it in a session.")
        if not request.user.is_authenticated:
            raise NotAuthenticated
        user = request.user
        emails = EmailAddress.objects.filter(user=user, verified=True).values_list("email", flat=True)
        token = self.read(shapes.Acceptance)["token"]
        member = accept_invitation(token=token, user=user, verified_emails=list(emails))
        return Response(shapes.JoinedShape({"tenant": member.tenant.name, "role": member.role}).data, status=201)


def invitation_values(invitation: Invitation) -> dict[str, Any]:
    state = "accepted" if invitation.accepted_at else "revoked" if invitation.revoked_at else "pending"
    if state == "pending" and invitation.expires_at <= timezone.now():
        state = "expired"
    names = ("id", "email", "role", "created_at", "sent_at", "expires_at")
    values: dict[str, Any] = {name: getattr(invitation, name) for name in names}
    return values | {"state": state, "invited_by": str(invitation.invited_by) if invitation.invited_by else None}
