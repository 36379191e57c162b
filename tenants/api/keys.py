"""API keys."""

from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from headway.errors import InvalidInput
from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import TenantView
from tenants.errors import UnknownKey
from tenants.models import ApiKey, Limit, LimitKind
from tenants.services import keys
from tenants.services.holding import hold_tenant
from tenants.services.key_settings import settings_of


class Keys(TenantView):
    actions = {"GET": Action.VIEW_KEYS, "POST": Action.MANAGE_KEYS}

    @extend_schema(operation_id="keys_list", responses=shapes.KeyShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """All, revoked ones too, newest first."""
        rows = ApiKey.objects.for_tenant(self.standing.tenant).select_related("member", "created_by")
        limits: dict[str, dict[str, int]] = {}
        for key_id, kind, value in (
            Limit.objects.for_tenant(self.standing.tenant).exclude(key=None).values_list("key_id", "kind", "value")
        ):
            limits.setdefault(key_id, {})[kind] = value
        return self.page(
            rows, shapes.KeyShape, ordering=("-created_at",), prepare=lambda key: key_values(key, limits.get(key.id, {}))
        )

    @extend_schema(operation_id="keys_issue", request=shapes.NewKey, responses={201: shapes.IssuedKeyShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """The whole key is in this answer, and in no other. A key makes no key that may more than itself."""
        asked, standing = self.read(shapes.NewKey), self.standing
        limits = limits_of(asked.pop("limits", {}))
        who: dict[str, Any] = {"actor": standing.actor, "member": standing.user, "by": standing.asker}
        issued = keys.issue_api_key(tenant=standing.tenant, limits=limits, **who, **asked)
        return _issued(issued)


class OneKey(TenantView):
    actions = {"GET": Action.VIEW_KEYS, "PATCH": Action.MANAGE_KEYS, "DELETE": Action.MANAGE_KEYS}

    @extend_schema(operation_id="keys_read", responses=shapes.KeyShape)
    def get(self, _request: Request, tenant: str, key_id: str) -> Response:
        return self._shown(key_id)

    @extend_schema(operation_id="keys_change", request=shapes.KeyFields, responses=shapes.KeyShape)
    def patch(self, _request: Request, tenant: str, key_id: str) -> Response:
        """What is given; gateways know within a second. The scope manage is given to new keys only.

        A key does not change itself, nor another into one that may more than itself.
        """
        asked, standing = self.read(shapes.KeyFields, partial=True), self.standing
        given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
        with transaction.atomic():
            hold_tenant(standing.tenant)  # what is not given stays as whoever came before has set it
            settings = replace(settings_of(keys.key_in_use(standing.tenant, key_id)), **given)
            who: dict[str, Any] = {"actor": standing.actor, "by": standing.asker}
            keys.change_api_key(tenant=standing.tenant, key_id=key_id, settings=settings, **who)
        return self._shown(key_id)

    @extend_schema(operation_id="keys_revoke", responses={204: None})
    def delete(self, _request: Request, tenant: str, key_id: str) -> Response:
        """For good; gateways refuse it within a second. Requests that run go on to their end."""
        keys.revoke_api_key(tenant=self.standing.tenant, key_id=key_id, actor=self.standing.actor)
        return Response(status=204)

    def _shown(self, key_id: str) -> Response:
        rows = ApiKey.objects.for_tenant(self.standing.tenant).select_related("member", "created_by")
        key = rows.filter(id=key_id).first()
        if key is None:
            raise UnknownKey(f"{self.standing.tenant.name} has no key {key_id!r}")
        return Response(shapes.KeyShape(key_values(key, own_limits(key))).data)


class RotateKey(TenantView):
    actions = {"POST": Action.MANAGE_KEYS}

    @extend_schema(operation_id="keys_rotate", request=shapes.Rotation, responses={201: shapes.IssuedKeyShape})
    def post(self, _request: Request, tenant: str, key_id: str) -> Response:
        """A new key with the same settings; the old one goes on working for the overlap."""
        overlap_h = int(self.read(shapes.Rotation)["overlap_h"])
        standing = self.standing
        who: dict[str, Any] = {"actor": standing.actor, "member": standing.user, "by": standing.asker}
        issued = keys.rotate_api_key(tenant=standing.tenant, key_id=key_id, overlap_h=overlap_h, **who)
        return _issued(issued)


class DisableKey(OneKey):
    actions = {"POST": Action.MANAGE_KEYS}
    http_method_names = ("post",)

    @extend_schema(operation_id="keys_disable", request=None, responses=shapes.KeyShape)
    def post(self, _request: Request, tenant: str, key_id: str) -> Response:
        keys.disable_api_key(tenant=self.standing.tenant, key_id=key_id, actor=self.standing.actor)
        return self._shown(key_id)


class EnableKey(OneKey):
    actions = {"POST": Action.MANAGE_KEYS}
    http_method_names = ("post",)

    @extend_schema(operation_id="keys_enable", request=None, responses=shapes.KeyShape)
    def post(self, _request: Request, tenant: str, key_id: str) -> Response:
        who: dict[str, Any] = {"actor": self.standing.actor, "by": self.standing.asker}
        keys.enable_api_key(tenant=self.standing.tenant, key_id=key_id, **who)
        return self._shown(key_id)


def limits_of(given: dict[str, int | None]) -> dict[LimitKind, int | None]:
    """Raises InvalidInput."""
    unknown = sorted(given.keys() - set(LimitKind.values))
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is no limit; there are {', '.join(LimitKind.values)}", param="limits")
    return {LimitKind(kind): value for kind, value in given.items()}


def own_limits(key: ApiKey) -> dict[str, int]:
    return dict(Limit.objects.for_tenant(key.tenant).filter(key=key).values_list("kind", "value"))


def key_values(key: ApiKey, limits: dict[str, int]) -> dict[str, Any]:
    names = [name for name in shapes.KeyShape().fields if name not in {"prefix", "state", "limits", "replaces"}]
    values: dict[str, Any] = {name: getattr(key, name) for name in names}
    return values | {
        "prefix": f"hw_live_{key.id}",
        "state": state_of(key),
        "limits": limits,
        "replaces_id": key.replaces_id,
    }


def state_of(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    return "disabled" if key.disabled_at is not None else "active"


def _issued(issued: keys.IssuedKey) -> Response:
    values = key_values(issued.key, own_limits(issued.key)) | {"key": issued.text}
    return Response(shapes.IssuedKeyShape(values).data, status=201)
