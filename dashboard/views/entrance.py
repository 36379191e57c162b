"""From a person to an organisation: where `/` leads, naming one, accepting an invitation."""

from allauth.account.models import EmailAddress
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from dashboard.accounts import limited
from dashboard.errors import FormAlreadySent
from dashboard.form_errors import tell
from dashboard.forms import TenantForm
from dashboard.once import once
from dashboard.seats import LAST_TENANT
from headway.errors import HeadwayError
from tenants.errors import UnknownInvitation
from tenants.selectors import tenants_of
from tenants.services.invitations import accept_invitation, invitation_of_token
from tenants.services.tenants import found_tenant


@login_required
def home(request: HttpRequest) -> HttpResponse:
    """The organisation that was open last, else the first; without any, the page that makes one."""
    names = [membership.tenant.name for membership in tenants_of(request.user)]  # type: ignore[arg-type]
    if not names:
        return redirect("start")
    last = request.session.get(LAST_TENANT)
    return redirect("overview", last if last in names else names[0])


@login_required
@limited("start")
def start(request: HttpRequest) -> HttpResponse:
    form = TenantForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            with once(request):
                tenant = found_tenant(name=form.cleaned_data["name"], owner=request.user)  # type: ignore[arg-type]
            return redirect("overview", tenant.name)
        except FormAlreadySent:
            return redirect("home")
        except HeadwayError as error:
            tell(form, error)
    return render(request, "dashboard/start.html", {"form": form})


@login_required
@limited("invitation")
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Shown to whoever has the link; accepted by the person it was sent to alone."""
    try:
        found = invitation_of_token(token)
        if request.method == "POST":
            emails = EmailAddress.objects.filter(user=request.user, verified=True).values_list("email", flat=True)
            member = accept_invitation(token=token, user=request.user, verified_emails=list(emails))  # type: ignore[arg-type]
            messages.success(request, f"You are now {member.role} of {found.tenant.name}")
            return redirect("overview", found.tenant.name)
    except UnknownInvitation as error:
        return render(request, "dashboard/invitation.html", {"problem": error.message}, status=404)
    except HeadwayError as error:
        return render(request, "dashboard/invitation.html", {"problem": error.message}, status=error.http_status)
    return render(request, "dashboard/invitation.html", {"invitation": found})
