"""The tables behind the control state, and how a row of the feed changes them. What cannot be read fails closed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from inference.gateway.entries import Change, ModelEntry, ReplicaEntry, Serving
from inference.gateway.key_rows import KeyRow, KeyTerms, MemberRow, key_terms_of
from inference.gateway.tenant_rows import (
    BalanceRow,
    MonthRow,
    PricesRow,
    TenantFacts,
    TermsRow,
    facts_of,
    terms_of,
)
from inference.gateway.version_rows import VersionsRow, shadow_of, versions_of
from inference.policy.brain_tunables import targets_of
from inference.policy.decisions import TenantTerms

log = structlog.get_logger(__name__)


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
class Tables:
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


def apply_one(tables: Tables, change: Change) -> None:
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


def _remove(tables: Tables, change: Change) -> None:
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


def derive_routes(tables: Tables) -> None:
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


def _serving_by_model(tables: Tables) -> dict[str, Serving]:
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
