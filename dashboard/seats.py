"""Who sits before a page: a person, the tenant in its address, and what the person's role allows. Fails closed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render

from tenants.access import LOOKING, Action, allows
from tenants.selectors import membership_of, visit_of

LAST_TENANT = "last_tenant"
P = ParamSpec("P")


@dataclass(frozen=True)
class Seat:
    tenant: Any  # tenants.models.Tenant; apps meet at doors, and models are none
    user: Any
    role: str
    is_visit: bool = False
    """An operator's, who is no member: with the eyes of that role, and without its hands."""

    def may(self, action: Action) -> bool:
        return allows(self.role, action) and (not self.is_visit or action in LOOKING)

    @property
    def can(self) -> dict[str, bool]:
        """For templates: `seat.can.manage_keys`."""
        return {action.value: self.may(action) for action in Action}

    @property
    def actor(self) -> str:
        """As the audit log names this person."""
        return f"user:{self.user}"


SeatedView = Callable[Concatenate[HttpRequest, Seat, P], HttpResponseBase]


def seat_of(user: Any, tenant_name: str) -> Seat | None:
    """None: no such tenant, a stranger to it, or one that is suspended; nobody is told which. An operator on a visit sees
    a suspended one too."""
    found = membership_of(user, tenant_name)
    if found is None:
        visit = visit_of(user, tenant_name)
        return Seat(tenant=visit.tenant, user=user, role=visit.role, is_visit=True) if visit else None
    if found.tenant.suspended_at is not None:
        return None
    return Seat(tenant=found.tenant, user=found.user, role=found.role)


def seated(action: Action) -> Callable[[SeatedView[P]], Callable[..., HttpResponseBase]]:
    """A page of a tenant: log-in, membership (404 without) and the action (403 without) are asked before the view runs."""

    def decorate(view: SeatedView[P]) -> Callable[..., HttpResponseBase]:
        @login_required
        @wraps(view)
        def page(request: HttpRequest, tenant: str, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            seat = seat_of(request.user, tenant)
            if seat is None:
                raise Http404("there is no such organisation, or it is not yours")
            request.seat = seat  # type: ignore[attr-defined]  # the layout shows it
            if request.session.get(LAST_TENANT) != tenant:
                request.session[LAST_TENANT] = tenant
            if not seat.may(action) or (seat.is_visit and request.method not in {"GET", "HEAD"}):
                return render(request, "dashboard/not_allowed.html", {"action": action.value.replace("_", " ")}, status=403)
            return view(request, seat, *args, **kwargs)

        return page

    return decorate
