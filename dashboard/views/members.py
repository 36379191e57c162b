"""Members of an organisation: invite, change the role, remove, hand the ownership over, leave."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts import limited
from dashboard.confirming import is_confirmed
from dashboard.errors import FormAlreadySent
from dashboard.form_errors import tell
from dashboard.forms import InviteForm
from dashboard.member_page import assignable, member_page
from dashboard.once import once
from dashboard.seats import Seat, seated
from dashboard.telling import tell_next_page, telling
from headway.errors import HeadwayError
from tenants.access import Action
from tenants.selectors import members_of_tenant
from tenants.services import members as service
from tenants.services.invitations import invite as send_invitation
from tenants.services.invitations import resend_invitation, revoke_invitation


@require_GET
@seated(Action.VIEW_MEMBERS)
def members(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = InviteForm(roles=assignable(seat))
    return render(request, "dashboard/members.html", {"page": member_page(seat, request.GET), "form": form})


@require_POST
@limited("invite")
@seated(Action.MANAGE_MEMBERS)
def invite(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = InviteForm(request.POST, roles=assignable(seat))
    if form.is_valid():
        email, role = form.cleaned_data["email"], form.cleaned_data["role"]
        try:
            with once(request):
                send_invitation(
                    tenant=seat.tenant, email=email, role=role, actor=seat.actor, actor_role=seat.role, by=seat.user
                )
            messages.success(request, f"{email} was invited as {role}")
            return redirect("members", seat.tenant.name)
        except FormAlreadySent:
            return redirect("members", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    return render(request, "dashboard/members.html", {"page": member_page(seat, {}), "form": form}, status=400)


@require_POST
@limited("invite")
@seated(Action.MANAGE_MEMBERS)
def resend(request: HttpRequest, seat: Seat, invitation_id: str) -> HttpResponse:
    with telling(request, "The invitation was sent again; its old link stopped working"), once(request):
        resend_invitation(tenant=seat.tenant, invitation_id=invitation_id, actor=seat.actor, actor_role=seat.role)
    return redirect("members", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_MEMBERS)
def revoke(request: HttpRequest, seat: Seat, invitation_id: str) -> HttpResponse:
    with telling(request, "The invitation was revoked"):
        revoke_invitation(tenant=seat.tenant, invitation_id=invitation_id, actor=seat.actor)
    return redirect("members", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_MEMBERS)
def role(request: HttpRequest, seat: Seat, user_id: int) -> HttpResponse:
    member, wanted = _member(seat, user_id), request.POST.get("role", "")
    if wanted not in assignable(seat):
        messages.error(request, "Nothing was changed: choose a role you may give")
        return redirect("members", seat.tenant.name)
    with telling(request, f"{member.user} is now {wanted}"):
        service.change_role(tenant=seat.tenant, user=member.user, role=wanted, actor=seat.actor, actor_role=seat.role)
    return redirect("members" if seat.user.id != user_id else "overview", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_MEMBERS)
def remove(request: HttpRequest, seat: Seat, user_id: int) -> HttpResponse:
    member = _member(seat, user_id)
    if is_confirmed(request, str(member.user)):
        heir = seat.user if request.POST.get("keys") == "mine" else None
        with telling(request, f"{member.user} was removed; their keys are {'yours' if heir else 'revoked'}"):
            service.remove_member(
                tenant=seat.tenant, user=member.user, actor=seat.actor, actor_role=seat.role, hand_keys_to=heir
            )
    return redirect("members", seat.tenant.name)


@require_POST
@seated(Action.TRANSFER_OWNERSHIP)
def transfer(request: HttpRequest, seat: Seat, user_id: int) -> HttpResponse:
    member = _member(seat, user_id)
    if is_confirmed(request, seat.tenant.name):
        with telling(request, f"{member.user} is the owner now, and you are an admin"):
            service.transfer_ownership(tenant=seat.tenant, owner=seat.user, to=member.user, actor=seat.actor)
    return redirect("members", seat.tenant.name)


@require_POST
@seated(Action.VIEW_TENANT)
def leave(request: HttpRequest, seat: Seat) -> HttpResponse:
    if not is_confirmed(request, seat.tenant.name):
        return redirect("members", seat.tenant.name)
    try:
        service.leave(tenant=seat.tenant, user=seat.user)
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect("members", seat.tenant.name)
    messages.success(request, f"You left {seat.tenant.name}")
    return redirect("home")


def _member(seat: Seat, user_id: int) -> Any:
    fits = user_id < 2**63  # an address may hold any number; a row's id is one of 64 bits
    found = members_of_tenant(seat.tenant).filter(user_id=user_id).first() if fits else None
    if found is None:
        raise Http404("there is no such member")
    return found
