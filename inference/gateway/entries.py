"""What the data plane knows of one thing, whole and immutable: who asks, a model, a replica; and a row of the feed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.gateway.key_rows import UNRESTRICTED, KeyTerms
from inference.gateway.version_rows import NO_SHADOW, Shadow
from inference.policy.decisions import Tier, TierTargets
from inference.policy.split import Versions


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
