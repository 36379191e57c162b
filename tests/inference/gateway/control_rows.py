"""Rows of the feed as the services publish them, for tests that need a control state."""

from typing import Any

from inference.gateway.state import Change, ControlState
from tenants.services.key_format import ParsedKey, new_key


def tenant_row(change_id: int, tenant_id: str = "acme-id", **changes: Any) -> Change:
    return Change(change_id, "tenant", tenant_id, {"name": "acme", "cache_salt": "salt", "is_active": True} | changes)


def key_row(change_id: int, key: ParsedKey, tenant_id: str = "acme-id", **changes: Any) -> Change:
    payload = {"tenant_id": tenant_id, "member_id": None, "secret_sha256": key.secret_sha256, "expires_at": None}
    return Change(change_id, "key", key.id, payload | changes)


def member_row(change_id: int, member_id: int = 7, tenant_id: str = "acme-id", role: str = "owner") -> Change:
    return Change(change_id, "member", f"{tenant_id}/{member_id}", {"role": role})


def model_row(change_id: int, public_id: str = "m", **changes: Any) -> Change:
    payload = {"created": 1, "pool": f"{public_id}-pool", "version": "v1", "max_in_flight": 2, "max_queued": 10}
    return Change(change_id, "model", public_id, payload | changes)


def replica_row(change_id: int, replica_id: str = "r1", model: str = "m", **changes: Any) -> Change:
    payload = {
        "model": model,
        "pool": f"{model}-pool",
        "version": "v1",
        "kind": "vllm",
        "url": "http://127.0.0.1:1",
        "upstream_model": model,
        "state": "ready",
        "max_in_flight": 2,
        "epoch": 0,
    }
    return Change(change_id, "replica", replica_id, payload | changes)


def gone(change_id: int, kind: str, key: str) -> Change:
    return Change(change_id, kind, key, None)


def state_of(*changes: Change) -> ControlState:
    state = ControlState()
    state.apply(changes)
    return state


def state_with_key() -> tuple[ControlState, ParsedKey]:
    key = new_key()
    return state_of(tenant_row(1), key_row(2, key)), key
