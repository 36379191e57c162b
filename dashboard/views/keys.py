"""API keys: make one, show it once, change, rotate, switch off, revoke."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from dashboard.confirming import is_confirmed
from dashboard.errors import FormAlreadySent
from dashboard.form_errors import tell
from dashboard.forms import KeyForm, RotateForm
from dashboard.key_forms import initial_of, limits_from, settings_from
from dashboard.key_list import key_list
from dashboard.once import once
from dashboard.seats import Seat, seated
from dashboard.shown_once import forget, keep_for_next_page, taken
from dashboard.telling import tell_next_page, telling
from headway.errors import HeadwayError
from inference.selectors import offered_models
from tenants.access import Action
from tenants.errors import UnknownKey
from tenants.selectors import limits_of_key
from tenants.services.keys import (
    change_api_key,
    disable_api_key,
    enable_api_key,
    issue_api_key,
    key_in_use,
    revoke_api_key,
    rotate_api_key,
)
from tenants.services.terms import set_limits


@require_GET
@seated(Action.VIEW_KEYS)
def keys(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/keys.html", {"list": key_list(seat.tenant, request.GET)})


@never_cache
@seated(Action.MANAGE_KEYS)
def new(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = _form(request, seat, initial={"scopes": ["inference"]})
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        days = data["expires_in_days"]
        try:
            with once(request):
                issued = issue_api_key(
                    tenant=seat.tenant,
                    name=data["name"],
                    actor=seat.actor,
                    member=seat.user,
                    expires_at=timezone.now() + timedelta(days=int(days)) if days else None,
                    scopes=data["scopes"],
                    allowed_models=data["allowed_models"],
                    allowed_addresses=data["allowed_addresses"],
                    tier_ceiling=data["tier_ceiling"],
                    limits=limits_from(data, {}),
                )
            return _to_made(request, seat, issued)
        except FormAlreadySent:
            return redirect("keys_made", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    return render(request, "dashboard/key_form.html", {"form": form})


@never_cache
@require_GET
@seated(Action.MANAGE_KEYS)
def made(request: HttpRequest, seat: Seat) -> HttpResponse:
    """The new key, once. In no address, and nowhere whole but in this answer."""
    found = taken(request, "key")
    if found is None or found[1]["tenant"] != seat.tenant.name:
        messages.error(request, "A new key is shown once. If you did not copy it, rotate it or make another")
        return redirect("keys", seat.tenant.name)
    text, about = found
    key, models = _key(seat, about["key_id"]), [model.id for model in offered_models()]
    model = next((model for model in models if model in (key.allowed_models or models)), "your-model")
    shown = {"key": key, "text": text, "model": model, "old": about.get("old"), "overlap_h": about.get("overlap_h")}
    response = render(request, "dashboard/key_made.html", shown)
    forget(response, "key")
    return response


@never_cache
@seated(Action.MANAGE_KEYS)
def edit(request: HttpRequest, seat: Seat, key_id: str) -> HttpResponse:
    key = _key(seat, key_id)
    form = _form(request, seat, initial=initial_of(seat.tenant, key))
    del form.fields["expires_in_days"]
    if request.method == "POST" and form.is_valid():
        try:
            change_api_key(
                tenant=seat.tenant,
                key_id=key.id,
                settings=settings_from(form.cleaned_data, key),
                actor=seat.actor,
                by=seat.user,
            )
            limits = limits_from(form.cleaned_data, limits_of_key(seat.tenant, key.id))
            set_limits(tenant=seat.tenant, key_id=key.id, limits=limits, actor=seat.actor, is_self_service=True)
            messages.success(request, f"{key.name} was changed; gateways know within a second")
            return redirect("keys", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    return render(request, "dashboard/key_form.html", {"form": form, "key": key, "rotation": RotateForm()})


@never_cache
@require_POST
@seated(Action.MANAGE_KEYS)
def rotate(request: HttpRequest, seat: Seat, key_id: str) -> HttpResponse:
    key, form = _key(seat, key_id), RotateForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Choose how long the old key goes on working")
        return redirect("keys_edit", seat.tenant.name, key.id)
    hours = int(form.cleaned_data["overlap_h"])
    try:
        with once(request):
            issued = rotate_api_key(tenant=seat.tenant, key_id=key.id, overlap_h=hours, actor=seat.actor, member=seat.user)
    except FormAlreadySent:
        return redirect("keys_made", seat.tenant.name)
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect("keys_edit", seat.tenant.name, key.id)
    return _to_made(request, seat, issued, old={"id": key.id, "name": key.name}, overlap_h=hours)


@require_POST
@seated(Action.MANAGE_KEYS)
def switch(request: HttpRequest, seat: Seat, key_id: str) -> HttpResponse:
    key = _key(seat, key_id)
    is_on = key.disabled_at is None
    with telling(request, f"{key.name} is {'disabled' if is_on else 'enabled'}; gateways know within a second"):
        if is_on:
            disable_api_key(tenant=seat.tenant, key_id=key.id, actor=seat.actor)
        else:
            enable_api_key(tenant=seat.tenant, key_id=key.id, actor=seat.actor, by=seat.user)
    return redirect("keys", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_KEYS)
def revoke(request: HttpRequest, seat: Seat, key_id: str) -> HttpResponse:
    key = _key(seat, key_id)
    if is_confirmed(request, key.name):
        with telling(request, f"{key.name} is revoked; gateways refuse it within a second"):
            revoke_api_key(tenant=seat.tenant, key_id=key.id, actor=seat.actor)
    return redirect("keys", seat.tenant.name)


def _form(request: HttpRequest, seat: Seat, *, initial: dict[str, Any]) -> KeyForm:
    models = [model.id for model in offered_models()]
    return KeyForm(request.POST or None, initial=initial, models=models, may_manage=seat.may(Action.MANAGE_MEMBERS))


def _key(seat: Seat, key_id: str) -> Any:
    try:
        return key_in_use(seat.tenant, key_id)
    except UnknownKey as error:
        raise Http404(error.message) from error


def _to_made(request: HttpRequest, seat: Seat, issued: Any, **about: Any) -> HttpResponse:
    response = redirect("keys_made", seat.tenant.name)
    keep_for_next_page(request, response, "key", issued.text, tenant=seat.tenant.name, key_id=issued.key.id, **about)
    return response
