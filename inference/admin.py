"""The registry in the Django admin. Changes go through services (audited, published), states through node agents."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from headway.admin_pages import AuditedAdmin, admin_actor
from headway.errors import HeadwayError
from inference.models import ControlChange, GatewayFeed, GoldenReference, Model, ModelVersion, NodeHeartbeat, Pool, Replica
from inference.rollout_models import Rollout, RolloutEvent, VersionPin
from inference.services.registry import register_model, register_replica, scale
from inference.weight_models import WeightCopy


@admin.register(Model)
class ModelAdmin(AuditedAdmin):
    list_display = ("public_id", "created_at", "retired_at")
    search_fields = ("public_id",)
    fields = ("public_id",)
    can_add = True

    def create(self, request: HttpRequest, form: ModelForm[Any]) -> Model:
        return register_model(public_id=form.cleaned_data["public_id"], actor=admin_actor(request))


@admin.register(ModelVersion)
class ModelVersionAdmin(AuditedAdmin):
    list_display = ("__str__", "weights_uri", "weights_digest", "engine_environment", "dtype", "created_at")
    list_filter = ("model",)


@admin.register(GoldenReference)
class GoldenReferenceAdmin(AuditedAdmin):
    list_display = ("version", "engine_environment", "dtype", "machine_kind", "recorded_from", "created_at")


@admin.register(Pool)
class PoolAdmin(AuditedAdmin):
    list_display = ("name", "model", "version", "desired_replicas", "max_in_flight", "max_queued")
    actions = ("one_more", "one_less")

    @admin.action(description="One replica more")
    def one_more(self, request: HttpRequest, queryset: QuerySet[Pool]) -> None:
        self._scale(request, queryset, 1)

    @admin.action(description="One replica less")
    def one_less(self, request: HttpRequest, queryset: QuerySet[Pool]) -> None:
        self._scale(request, queryset, -1)

    def _scale(self, request: HttpRequest, queryset: QuerySet[Pool], by: int) -> None:
        for pool in queryset.select_related("model"):
            try:
                wanted = pool.desired_replicas + by
                scale(public_id=pool.model.public_id, replicas=wanted, actor=admin_actor(request), node=settings.NODE_NAME)
                self.message_user(request, f"{pool.model}: {wanted} wanted")
            except HeadwayError as error:
                self.message_user(request, f"{pool.model}: {error.message}", level="error")


@admin.register(Replica)
class ReplicaAdmin(AuditedAdmin):
    list_display = ("id", "pool", "version", "kind", "node", "url", "state", "reason", "epoch", "changed_at")
    list_filter = ("state", "pool")
    fields = ("pool", "url", "kind", "upstream_model")
    can_add = True

    def create(self, request: HttpRequest, form: ModelForm[Any]) -> Replica:
        data = form.cleaned_data
        return register_replica(
            public_id=data["pool"].model.public_id,
            url=data["url"],
            kind=data["kind"],
            upstream_model=data["upstream_model"],
            actor=admin_actor(request),
        )


@admin.register(NodeHeartbeat)
class NodeHeartbeatAdmin(AuditedAdmin):
    list_display = ("name", "machine_kind", "seen_at")


@admin.register(WeightCopy)
class WeightCopyAdmin(AuditedAdmin):
    list_display = ("version", "node", "state", "reason", "bytes_done", "bytes_total", "last_used_at", "keep_until")
    list_filter = ("state", "node")


@admin.register(GatewayFeed)
class GatewayFeedAdmin(AuditedAdmin):
    list_display = ("gateway", "applied_change_id", "seen_at")


@admin.register(ControlChange)
class ControlChangeAdmin(AuditedAdmin):
    list_display = ("id", "kind", "key", "at")
    list_filter = ("kind",)
    fields = ("kind", "key", "at")  # payloads hold hashes and salts: not for a page


@admin.register(Rollout)
class RolloutAdmin(AuditedAdmin):
    list_display = ("id", "model", "from_version", "to_version", "state", "reason", "changed_at")
    list_filter = ("state", "model")


@admin.register(RolloutEvent)
class RolloutEventAdmin(AuditedAdmin):
    list_display = ("rollout", "at", "kind", "from_state", "to_state", "actor", "reason")
    list_filter = ("kind",)


@admin.register(VersionPin)
class VersionPinAdmin(AuditedAdmin):
    list_display = ("tenant_id", "model", "version", "is_in_force", "created_by", "created_at")
