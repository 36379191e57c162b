"""Tenants in the Django admin. Every change goes through a service, so that it is audited and published."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.db import transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from headway.admin_pages import AuditedAdmin, admin_actor
from tenants.models import ApiKey, AuditEntry, Limit, Membership, Plan, Tenant, User
from tenants.services.keys import issue_api_key, revoke_api_key
from tenants.services.members import publish_memberships
from tenants.services.tenants import create_tenant


@admin.register(User)
class PersonAdmin(UserAdmin):  # type: ignore[type-arg]
    """Who is switched off here is refused by gateways too. Nobody is deleted: their keys would be nobody's then."""

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            publish_memberships(obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Tenant)
class TenantAdmin(AuditedAdmin):
    list_display = ("name", "id", "plan", "time_zone", "created_at", "suspended_at")
    search_fields = ("name",)
    fields = ("name",)
    can_add = True

    def create(self, request: HttpRequest, form: ModelForm[Any]) -> Tenant:
        return create_tenant(name=form.cleaned_data["name"], actor=admin_actor(request))


@admin.register(ApiKey)
class ApiKeyAdmin(AuditedAdmin):
    list_display = ("id", "tenant", "name", "created_at", "expires_at", "revoked_at")
    list_filter = ("tenant",)
    search_fields = ("id", "name")
    fields = ("tenant", "name", "expires_at")
    actions = ("revoke",)
    can_add = True

    def create(self, request: HttpRequest, form: ModelForm[Any]) -> ApiKey:
        data = form.cleaned_data
        issued = issue_api_key(
            tenant=data["tenant"], name=data["name"], expires_at=data["expires_at"], actor=admin_actor(request)
        )
        messages.warning(request, f"Copy the key now, it is not shown again: {issued.text}")
        return issued.key

    @admin.action(description="Revoke the chosen keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            revoke_api_key(key_id=key.id, actor=admin_actor(request))
        self.message_user(request, f"{len(queryset)} revoked; gateways refuse them within a second")


@admin.register(Plan)
class PlanAdmin(AuditedAdmin):
    """To look at; `define_plan` makes and changes them."""

    list_display = (
        "name",
        "weight",
        "tier_ceiling",
        "requests_per_minute",
        "input_tokens_per_minute",
        "output_tokens_per_minute",
        "concurrent_requests",
        "monthly_budget_micros",
        "default_max_tokens",
    )


@admin.register(Limit)
class LimitAdmin(AuditedAdmin):
    """To look at; `set_limits` makes and changes them."""

    list_display = ("tenant", "key", "model", "kind", "value")
    list_filter = ("tenant", "kind")


@admin.register(Membership)
class MembershipAdmin(AuditedAdmin):
    """To look at: members come and go by the site and its API."""

    list_display = ("tenant", "user", "role")


@admin.register(AuditEntry)
class AuditEntryAdmin(AuditedAdmin):
    list_display = ("at", "actor", "action", "target", "tenant")
    list_filter = ("action",)
    search_fields = ("actor", "target")
    date_hierarchy = "at"
