"""What the data plane knows: tenants with their terms, keys, models with their prices, replicas. Fed by the change feed,
read on the event loop.

One writer (the feed's thread), many readers without a lock: every table's values are whole immutable objects, and a
reader does one dictionary look-up a table, which the interpreter makes atomic. Lists are rebuilt and swapped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from headway.errors import HeadwayError
from inference.gateway.key_rows import (
    UNRESTRICTED,
    KeyNotAllowed,
    KeyRow,
    KeyTerms,
    MemberRow,
    key_terms_of,
    member_row_key,
    salt_of_key,
)
from inference.gateway.tenant_rows import (
    NO_FACTS,
    NO_PRICE,
    Balance,
    BalanceRow,
    MonthRow,
    PricesRow,
    Spend,
    TenantFacts,
    TermsRow,
    balance_of,
    facts_of,
    price_at,
    spend_of,
    terms_of,
)
from inference.gateway.version_rows import NO_SHADOW, Shadow, VersionsRow, shadow_of, versions_of
from inference.policy.brain_tunables import targets_of
from inference.policy.decisions import TenantTerms, Tier, TierTargets, TokenPrice
from inference.policy.split import Versions
from tenants.access import Action, allows
from tenants.services.key_format import parse_key
from tenants.services.tickets import PLAYGROUND_KEY_ID

log = structlog.get_logger(__name__)

# Compared with when the key's id is unknown, so that an unknown id costs what a wrong secret does.
_NO_SECRET_SHA256 = "0" * 64


class KeyRefused(HeadwayError):
    """Fix the key; it is not one that may be used. The message never carries the key."""

    code = "invalid_api_key"
    http_status = 401
    error_type = "invalid_request_error"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A row of the feed. `payload` None: the object is gone."""

    id: int
    kind: str
    key: str
    payload: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the tenant and the key of an authenticated request."""

    tenant_id: str
    tenant_name: str
    key_id: str
    member_id: int | None
    cache_salt: str
    key: KeyTerms = UNRESTRICTED


@dataclass(frozen=True, slots=True)
class ModelEntry:
    public_id: str
    created_s: int
    pool: str
    version: str
    max_in_flight: int
    max_queued: int
    min_in_flight: int
    targets: Mapping[Tier, TierTargets]
    hold_limit_s: float = 0.0
    start_s: float = 0.0
    versions: Versions | None = None
    """None: nothing was told of them, and all replicas that are ready serve."""
    shadow: Shadow = NO_SHADOW

    @property
    def stable(self) -> str:
        return self.version if self.versions is None else self.versions.stable


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    id: str
    model: str
    pool: str
    version: str
    kind: str  # "vllm" | "openai"
    url: str
    upstream_model: str
    state: str
    max_in_flight: int
    epoch: int
    tokeniser: str = ""
    max_model_len: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Serving:
    """How all replicas that take requests of a model count, and the smallest context among them."""

    tokeniser: str
    context_tokens: int


class _Tenant(msgspec.Struct, frozen=True):
    name: str
    cache_salt: str
    is_active: bool


class _Model(msgspec.Struct, frozen=True):
    created: int
    pool: str
    version: str
    max_in_flight: int
    max_queued: int
    min_in_flight: int = 1
    targets_ms: dict[str, int | None] = {}
    versions: VersionsRow | None = None
    hold_limit_s: float = 0.0
    start_s: float = 0.0


class _Replica(msgspec.Struct, frozen=True):
    model: str
    pool: str
    version: str
    kind: str
    url: str
    upstream_model: str
    state: str
    max_in_flight: int
    epoch: int
    tokeniser: str = ""
    max_model_len: int = 0
    remote_url: str = ""
    zone: str = ""


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "tenant": _Tenant,
    "key": KeyRow,
    "member": MemberRow,
    "model": _Model,
    "replica": _Replica,
    "terms": TermsRow,
    "price": PricesRow,
    "month": MonthRow,
    "balance": BalanceRow,
}


_MODEL_FIELDS = ("pool", "version", "max_in_flight", "max_queued", "min_in_flight", "hold_limit_s", "start_s")

# Gone would mean without limits, free, unspent: what was known before is nearer to the truth.
_KEPT_WHEN_UNREADABLE = frozenset({"terms", "price", "month", "balance"})


@dataclass(slots=True)
class _Tables:
    tenants: dict[str, _Tenant] = field(default_factory=dict)
    keys: dict[str, tuple[KeyRow, KeyTerms]] = field(default_factory=dict)
    revoked_key_ids: set[str] = field(default_factory=set)
    members: dict[str, MemberRow] = field(default_factory=dict)
    models: dict[str, ModelEntry] = field(default_factory=dict)
    replicas: dict[str, ReplicaEntry] = field(default_factory=dict)
    terms: dict[str, tuple[TenantTerms, TenantFacts]] = field(default_factory=dict)
    prices: dict[str, PricesRow] = field(default_factory=dict)
    months: dict[str, MonthRow] = field(default_factory=dict)
    operator_id: str = ""
    balances: dict[str, tuple[int, BalanceRow]] = field(default_factory=dict)
    """Each with the id of the change that told it."""
    # Derived from models and replicas, swapped whole.
    sorted_models: list[ModelEntry] = field(default_factory=list)
    ready_by_model: dict[str, list[ReplicaEntry]] = field(default_factory=dict)
    serving_by_model: dict[str, Serving] = field(default_factory=dict)
    # The newest row of each object, for the snapshot; the feed's thread only.
    rows: dict[tuple[str, str], Change] = field(default_factory=dict)


class ControlState:
    """`apply` and `reload` belong to the feed's thread; everything else may be called from the event loop."""

    def __init__(self) -> None:
        self.applied_change_id = 0
        self._tables = _Tables()
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
            _apply_one(self._tables, change)
        self._finish(changes)

    def reload(self, changes: Sequence[Change]) -> None:
        """Forget everything and take these rows (the newest of each object) instead."""
        tables, before = _Tables(), self._tables
        for change in changes:
            _apply_one(tables, change)
        _derive_routes(tables)
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
            _derive_routes(self._tables)
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


def _apply_one(tables: _Tables, change: Change) -> None:
    shape = _SHAPES.get(change.kind)
    if shape is None:
        return  # a kind that a newer release publishes
    value = _decode(change, shape)
    if value is None and change.payload is not None and change.kind in _KEPT_WHEN_UNREADABLE:
        return
    if value is None and change.kind != "key":
        tables.rows.pop((change.kind, change.key), None)
    else:
        tables.rows[change.kind, change.key] = change
    match value:
        case None:
            _remove(tables, change)
        case _Tenant():
            tables.tenants[change.key] = value
        case KeyRow():
            tables.keys[change.key] = value, key_terms_of(value)
            tables.revoked_key_ids.discard(change.key)
        case MemberRow():
            tables.members[change.key] = value
        case _Model(created=created):
            rest = {name: getattr(value, name) for name in _MODEL_FIELDS}
            rest |= {"versions": versions_of(value.versions), "shadow": shadow_of(value.versions)}
            targets = targets_of(value.targets_ms)
            tables.models[change.key] = ModelEntry(public_id=change.key, created_s=created, targets=targets, **rest)
        case _Replica():
            fields = msgspec.structs.asdict(value)
            fields["url"] = reachable(fields.pop("remote_url"), value.url)
            tables.replicas[change.key] = ReplicaEntry(id=change.key, **fields)
        case TermsRow():
            tables.terms[change.key] = terms_of(change.key, value), facts_of(value)
            if value.is_operator:
                tables.operator_id = change.key
        case PricesRow():
            tables.prices[change.key] = value
        case MonthRow():
            tables.months[change.key] = value
        case BalanceRow():
            tables.balances[change.key] = change.id, value


def reachable(remote_url: str, url: str) -> str:
    """Where this process reaches an engine: at its socket, or where that is not on this machine, at its node's front."""
    return remote_url if remote_url and not Path(url.removeprefix("unix:")).exists() else url


def _decode(change: Change, shape: type[msgspec.Struct]) -> msgspec.Struct | None:
    """The payload as one of ours; one that cannot be read counts as gone, so that it fails closed."""
    if change.payload is None:
        return None
    try:
        value: msgspec.Struct = msgspec.convert(change.payload, shape)
        if isinstance(value, TermsRow):
            terms_of(change.key, value)
        if isinstance(value, _Model):
            value = _with_known_targets(change, value)
        if isinstance(value, KeyRow):
            key_terms_of(value)
        return value
    except (msgspec.ValidationError, ValueError) as error:
        log.error("control_change_unreadable", change_id=change.id, kind=change.kind, reason=str(error))
        return None


def _with_known_targets(change: Change, model: _Model) -> _Model:
    """Targets that are out of order are no reason to serve the model no longer: the defaults hold then."""
    try:
        targets_of(model.targets_ms)
        return model
    except ValueError as error:
        log.error("pool_targets_refused", change_id=change.id, model=change.key, reason=str(error))
        return msgspec.structs.replace(model, targets_ms={})


def _remove(tables: _Tables, change: Change) -> None:
    if change.kind == "key":
        tables.revoked_key_ids.add(change.key)
        tables.keys.pop(change.key, None)
    elif change.kind == "tenant":
        tables.tenants.pop(change.key, None)
    else:
        tables_of_kind: dict[str, dict[str, Any]] = {
            "member": tables.members,
            "model": tables.models,
            "replica": tables.replicas,
            "terms": tables.terms,
            "price": tables.prices,
            "month": tables.months,
            "balance": tables.balances,
        }
        tables_of_kind[change.kind].pop(change.key, None)


def _derive_routes(tables: _Tables) -> None:
    tables.sorted_models = sorted(tables.models.values(), key=lambda model: model.public_id)
    tables.ready_by_model = _ready_by_model(tables.replicas.values())
    tables.serving_by_model = _serving_by_model(tables)


def _ready_by_model(replicas: Iterable[ReplicaEntry]) -> dict[str, list[ReplicaEntry]]:
    ready: dict[str, list[ReplicaEntry]] = {}
    for replica in sorted(replicas, key=lambda replica: replica.id):
        if replica.state == "ready":
            ready.setdefault(replica.model, []).append(replica)
    return ready


def _takes_requests(model: ModelEntry, replica: ReplicaEntry) -> bool:
    """Not one whose version serves no longer, or is only mirrored to."""
    versions = model.versions
    if versions is None or replica.version in ("", versions.stable) or replica.version in versions.pinned:
        return True
    return replica.version == versions.candidate and versions.is_split


def _serving_by_model(tables: _Tables) -> dict[str, Serving]:
    """From the replicas that take requests; where none does, from those that did (their queue may be waiting for them)."""
    known: dict[str, list[ReplicaEntry]] = {}
    for replica in tables.replicas.values():
        if replica.tokeniser:
            known.setdefault(replica.model, []).append(replica)
    serving = {}
    for model, counted in known.items():
        entry = tables.models.get(model)
        takes = [
            replica for replica in tables.ready_by_model.get(model, ()) if entry is None or _takes_requests(entry, replica)
        ]
        replicas = takes or counted
        tokenisers = {replica.tokeniser for replica in replicas}
        context_tokens = min((replica.max_model_len for replica in replicas), default=0)
        if len(tokenisers) == 1 and "" not in tokenisers and context_tokens:
            serving[model] = Serving(tokeniser=tokenisers.pop(), context_tokens=context_tokens)
    return serving
