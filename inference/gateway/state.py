"""What the data plane knows: tenants with their terms, keys, models with their prices, replicas. Fed by the change feed,
read on the event loop.

One writer (the feed's thread), many readers without a lock: every table's values are whole immutable objects, and a
reader does one dictionary look-up a table, which the interpreter makes atomic. Lists are rebuilt and swapped.
"""

from collections.abc import Callable, Iterable, Sequence

from headway.errors import HeadwayError
from inference.gateway.control_tables import Tables, apply_one, derive_routes, reachable
from inference.gateway.entries import Change, ModelEntry, Principal, ReplicaEntry, Serving
from inference.gateway.key_rows import UNRESTRICTED, KeyNotAllowed, member_row_key, salt_of_key
from inference.gateway.tenant_rows import NO_FACTS, NO_PRICE, Balance, Spend, TenantFacts, balance_of, price_at, spend_of
from inference.policy.decisions import TenantTerms, TokenPrice
from tenants.access import Action, allows
from tenants.services.key_format import parse_key
from tenants.services.tickets import PLAYGROUND_KEY_ID

__all__ = ["Change", "ControlState", "KeyRefused", "ModelEntry", "Principal", "ReplicaEntry", "Serving", "reachable"]

# Compared with when the key's id is unknown, so that an unknown id costs what a wrong secret does.
_NO_SECRET_SHA256 = "0" * 64


class KeyRefused(HeadwayError):
    """Fix the key; it is not one that may be used. The message never carries the key."""

    code = "invalid_api_key"
    http_status = 401
    error_type = "invalid_request_error"


class ControlState:
    """`apply` and `reload` belong to the feed's thread; everything else may be called from the event loop."""

    def __init__(self) -> None:
        self.applied_change_id = 0
        self._tables = Tables()
        self._callbacks: list[Callable[[], None]] = []
        self._tenant_callbacks: dict[str, list[Callable[[frozenset[str]], None]]] = {"terms": [], "month": [], "balance": []}

    # Readers

    def authenticate(self, key_text: str, *, now_s: float) -> Principal:
        """Who holds this key; `now_s` is unix time. Raises KeyRefused."""
        parsed = parse_key(key_text)
        if parsed is None:
            raise KeyRefused("This is not an API key of this service. Check that it was copied whole, without changes.")
        tables = self._tables
        if parsed.id in tables.revoked_key_ids:
            raise KeyRefused("This API key was revoked. Use another one.")
        key, key_terms = tables.keys.get(parsed.id, (None, UNRESTRICTED))
        if not parsed.matches(key.secret_sha256 if key else _NO_SECRET_SHA256) or key is None:
            raise KeyRefused("This API key is not known here. Check that it belongs to this service.")
        if key.expires_at is not None and key.expires_at <= now_s:
            raise KeyRefused("This API key has expired. Use another one.")
        if key.is_disabled:
            raise KeyRefused("This API key is disabled. Enable it, or use another one.")
        tenant = tables.tenants.get(key.tenant_id)
        if tenant is None or not tenant.is_active:
            raise KeyRefused("The organisation of this API key is suspended. Ask its owner or our support.")
        if key.member_id is not None:
            member = tables.members.get(member_row_key(key.tenant_id, key.member_id))
            if member is None:
                raise KeyRefused("Whose API key this is belongs to its organisation no longer. Use another one.")
            key_terms = key_terms.of_member(member.role)
        salt = tenant.cache_salt
        if self.facts(key.tenant_id).salt_per_key:
            salt = salt_of_key(salt, parsed.id)
        return Principal(key.tenant_id, tenant.name, parsed.id, key.member_id, salt, key_terms)

    def member(self, tenant_id: str, member_id: int) -> Principal:
        """Whom the site says sits before a page of ours: a member of the tenant, without a key. What he is now decides, not
        what he was when the site said so. Raises KeyRefused, KeyNotAllowed."""
        tables = self._tables
        tenant, member = tables.tenants.get(tenant_id), tables.members.get(member_row_key(tenant_id, member_id))
        if tenant is None or not tenant.is_active:
            raise KeyRefused("This organisation is suspended. Ask its owner or our support.")
        if member is None:
            raise KeyRefused("You belong to this organisation no longer.")
        if not allows(member.role, Action.USE_PLAYGROUND):
            raise KeyNotAllowed("Your role does not allow that.")
        salt = tenant.cache_salt
        if self.facts(tenant_id).salt_per_key:
            salt = salt_of_key(salt, f"member-{member_id}")
        return Principal(
            tenant_id=tenant_id,
            tenant_name=tenant.name,
            key_id=PLAYGROUND_KEY_ID,
            member_id=member_id,
            cache_salt=salt,
            key=UNRESTRICTED.of_member(member.role),
        )

    def model(self, public_id: str) -> ModelEntry | None:
        return self._tables.models.get(public_id)

    def models(self) -> list[ModelEntry]:
        """All, sorted by public id. Do not change the list."""
        return self._tables.sorted_models

    def replicas(self, model: str) -> list[ReplicaEntry]:
        """The ready ones of a model, sorted by id. Do not change the list."""
        return self._tables.ready_by_model.get(model, [])

    def replica(self, replica_id: str) -> ReplicaEntry | None:
        """In whatever state."""
        return self._tables.replicas.get(replica_id)

    def serving(self, model: str) -> Serving | None:
        """None where prompts cannot be counted: replicas without a tokeniser, or with different ones."""
        return self._tables.serving_by_model.get(model)

    def tokenisers(self) -> frozenset[str]:
        """The digests of all that replicas count with."""
        return frozenset(replica.tokeniser for replica in list(self._tables.replicas.values()) if replica.tokeniser)

    def terms(self, tenant_id: str) -> TenantTerms:
        """A tenant nothing was told of has no limits, weight 1 and every tier: the plan named default as we ship it."""
        known = self._tables.terms.get(tenant_id)
        return known[0] if known else TenantTerms(tenant_id)

    def all_terms(self) -> list[TenantTerms]:
        return [terms for terms, _ in list(self._tables.terms.values())]

    def facts(self, tenant_id: str) -> TenantFacts:
        known = self._tables.terms.get(tenant_id)
        return known[1] if known else NO_FACTS

    def operator_id(self) -> str:
        """The tenant that our own requests are of; empty: there is none yet."""
        return self._tables.operator_id

    def price(self, model: str, tier: str, *, now_s: float) -> tuple[str, TokenPrice]:
        """The version and the price that hold at `now_s` (unix time); ("", free) for a model without one."""
        row = self._tables.prices.get(model)
        return price_at(row, tier, now_s) if row else NO_PRICE

    def spend(self, tenant_id: str, *, now_s: float) -> list[Spend]:
        """Of the month that runs at `now_s` (unix time): of the tenant, first, and of each of its scopes with a budget."""
        return spend_of(self.terms(tenant_id), self.facts(tenant_id).time_zone, self._tables.months.get(tenant_id), now_s)

    def balance(self, tenant_id: str) -> Balance:
        """What was told of it; for one who pays later without its credit."""
        told_by, row = self._tables.balances.get(tenant_id, (0, None))
        return balance_of(row, is_prepaid=self.facts(tenant_id).is_prepaid, told_by=told_by)

    # The feed's thread

    def on_terms_changed(self, callback: Callable[[frozenset[str]], None]) -> None:
        """Called as that of on_routes_changed, with the ids of the tenants whose terms (may) have changed."""
        self._tenant_callbacks["terms"].append(callback)

    def on_months_changed(self, callback: Callable[[frozenset[str]], None]) -> None:
        """The same for what `spend` says of them. A month that ends changes it too, and calls nobody."""
        self._tenant_callbacks["month"].append(callback)

    def on_balances_changed(self, callback: Callable[[frozenset[str]], None]) -> None:
        """The same for `balance`, which terms that change change too."""
        self._tenant_callbacks["balance"].append(callback)

    def on_routes_changed(self, callback: Callable[[], None]) -> None:
        """Called on the feed's thread after models or replicas have changed; it must be quick and must not raise."""
        self._callbacks.append(callback)

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply rows in the order of their ids."""
        if not changes:
            return
        for change in changes:
            apply_one(self._tables, change)
        self._finish(changes)

    def reload(self, changes: Sequence[Change]) -> None:
        """Forget everything and take these rows (the newest of each object) instead."""
        tables, before = Tables(), self._tables
        for change in changes:
            apply_one(tables, change)
        derive_routes(tables)
        self.applied_change_id = 0
        self._tables = tables
        self._finish(changes, is_reload=True)
        self._tell_tenants("terms", before.terms.keys() - tables.terms.keys())
        self._tell_tenants("month", before.months.keys() - tables.months.keys())
        self._tell_tenants("balance", before.balances.keys() - tables.balances.keys())

    def rows(self) -> list[Change]:
        """The newest row of each object that is not gone, and of each revoked key: what a snapshot holds."""
        return sorted(self._tables.rows.values(), key=lambda change: change.id)

    def _finish(self, changes: Sequence[Change], *, is_reload: bool = False) -> None:
        has_new_routes = is_reload or any(change.kind in {"model", "replica"} for change in changes)
        if has_new_routes:
            derive_routes(self._tables)
        # Last, so that whoever reads this id finds what it promises.
        self.applied_change_id = max((change.id for change in changes), default=self.applied_change_id)
        if has_new_routes:
            for callback in self._callbacks:
                callback()
        for kind in self._tenant_callbacks:
            self._tell_tenants(kind, {change.key for change in changes if change.kind == kind})

    def _tell_tenants(self, kind: str, tenant_ids: Iterable[str]) -> None:
        ids = frozenset(tenant_ids)
        for callback in self._tenant_callbacks[kind] if ids else ():
            callback(ids)
