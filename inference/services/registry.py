"""Register models, versions and external replicas; say how many replicas a pool should have."""

import re
import secrets
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import ModelExists, UnknownModel
from inference.models import Model, ModelVersion, Pool, Replica, ReplicaKind, ReplicaState, new_replica_id
from inference.policy.decisions import Tier
from inference.services import control
from inference.services.holding import hold_pool
from inference.services.replica_starts import usual_start_s
from inference.services.replicas import publish_replica
from inference.services.rollouts.split import versions_payload
from inference.services.version_labels import version_label, version_named
from inference.services.version_spec import VersionSpec
from inference.services.wanted import Change, want
from tenants.services.audit import record_audit

MAX_PUBLIC_ID_CHARS = 200
_VERSION = re.compile(r"(?P<model>.+?)(?::(?P<label>v\d+))?")
TARGET_FIELDS = tuple(f"{tier.name.lower()}_{what}_ms" for tier in Tier for what in ("ttft", "inter_token"))


def register_model(
    *, public_id: str, actor: str, version: VersionSpec | None = None, max_in_flight: int = 16, max_queued: int = 256
) -> Model:
    """Make a model and its pool, with a first version if one is given. Raises ModelExists, InvalidInput."""
    _check_public_id(public_id)
    if version is not None:
        version.check()
    if max_in_flight < 1 or max_queued < 0:
        raise InvalidInput("max_in_flight must be at least 1 and max_queued at least 0", param="max_in_flight")
    try:
        with transaction.atomic():
            model = Model.objects.create(public_id=public_id)
            pool = Pool.objects.create(
                model=model, name=f"{public_id[:50]}-{secrets.token_hex(3)}", max_in_flight=max_in_flight, max_queued=max_queued
            )
            if version is not None:
                _add_version(model=model, pool=pool, spec=version, actor=actor)
            publish_model(pool)
            record_audit(actor=actor, action="model.register", target=public_id, after={"version": version is not None})
    except IntegrityError:
        raise ModelExists(f"there is a model {public_id!r} already") from None
    return model


def _check_public_id(public_id: str) -> None:
    if not public_id or len(public_id) > MAX_PUBLIC_ID_CHARS or public_id != public_id.strip() or not public_id.isprintable():
        raise InvalidInput(
            f"a public id has 1 to {MAX_PUBLIC_ID_CHARS} printable characters and no blanks around it", param="model"
        )


def register_version(*, public_id: str, spec: VersionSpec, actor: str) -> ModelVersion:
    """Give a model a further version. The first is the stable one at once; a later one serves once a rollout brings it there.

    Raises UnknownModel, InvalidInput.
    """
    spec.check()
    with transaction.atomic():
        pool = hold_pool(pool_of(public_id).pk)
        version = _add_version(model=pool.model, pool=pool, spec=spec, actor=actor)
        publish_model(pool)
        record_audit(actor=actor, action="version.register", target=str(version), after={"weights": spec.weights_uri})
    return version


def _add_version(*, model: Model, pool: Pool, spec: VersionSpec, actor: str) -> ModelVersion:
    _check_batch_cap(spec, pool)
    last = model.versions.order_by("-number").first()
    version = ModelVersion.objects.create(
        model=model,
        number=(last.number if last else 0) + 1,
        weights_uri=spec.weights_uri,
        engine_environment=spec.engine_environment,
        engine_args=spec.all_engine_args(),
        dtype=spec.dtype,
        golden_prompts=spec.golden_prompts,
        created_by=actor[:200],
    )
    if pool.version is None:
        pool.version = version
        pool.save(update_fields=["version"])
    return version


def _check_batch_cap(spec: VersionSpec, pool: Pool) -> None:
    cap = spec.options.batch_cap
    if cap is not None and cap < pool.max_in_flight:
        raise InvalidInput(
            f"batch_cap {cap} is below the {pool.max_in_flight} requests that gateways send to a replica at once: "
            "set the pool's max_in_flight first",
            param="batch_cap",
        )


def targets_ms(pool: Pool) -> dict[str, int | None]:
    """None: the default."""
    return {name: getattr(pool, name) for name in TARGET_FIELDS}


def publish_model(pool: Pool) -> None:
    """Call it inside the transaction that changes the pool, its rollout or who is pinned to what."""
    control.publish(
        kind="model",
        key=pool.model.public_id,
        payload={
            "created": int(pool.model.created_at.timestamp()),
            "pool": pool.name,
            "version": version_label(pool.version),
            "max_in_flight": pool.max_in_flight,
            "min_in_flight": pool.min_in_flight,
            "max_queued": pool.max_queued,
            "hold_limit_s": pool.hold_limit_s if pool.is_autoscaled and pool.version is not None else 0,
            "start_s": usual_start_s(pool),
            "targets_ms": {name: value for name, value in targets_ms(pool).items() if value is not None},
            **versions_payload(pool),
        },
    )


def pool_of(public_id: str) -> Pool:
    """The pool of a model by its public id. Raises UnknownModel."""
    try:
        return Pool.objects.select_related("model", "version").get(model__public_id=public_id)
    except Pool.DoesNotExist:
        raise UnknownModel(f"there is no model {public_id!r}; `manage.py status` lists them", param="model") from None


def find_version(named: str) -> ModelVersion:
    """Of `NAME` the stable one, of `NAME:v2` that one. Raises UnknownModel, UnknownVersion, InvalidInput."""
    match = _VERSION.fullmatch(named)
    if match is None:
        raise UnknownModel("a version is named by its model's public id, or NAME:v2", param="model")
    pool = pool_of(match["model"])
    if match["label"] is not None:
        return version_named(pool.model, match["label"])
    if pool.version is None:
        raise InvalidInput(f"model {named!r} has no managed version", param="model")
    return pool.version


def register_replica(*, public_id: str, url: str, kind: str, actor: str, upstream_model: str = "") -> Replica:
    """Add an external replica; it takes traffic once a one-token request has answered. Raises UnknownModel, InvalidInput."""
    if kind not in ReplicaKind.values:
        raise InvalidInput(f"kind must be one of {', '.join(ReplicaKind.values)}, not {kind!r}", param="kind")
    parts = urlsplit(url)
    is_tcp = parts.scheme in {"http", "https"} and parts.hostname
    if not is_tcp and not (parts.scheme == "unix" and parts.path):
        raise InvalidInput("url must be http(s)://host:port or unix:/path/to/socket", param="url")
    if parts.username or parts.password:
        raise InvalidInput("url must not carry a user name or password", param="url")
    pool = pool_of(public_id)
    with transaction.atomic():
        replica = Replica.objects.create(
            id=new_replica_id(),
            pool=pool,
            kind=kind,
            url=url.rstrip("/").removesuffix("/v1"),  # people copy the SDK's base_url
            upstream_model=upstream_model or public_id,
            state=ReplicaState.CERTIFYING,
            reason="waiting for a one-token request to answer",
            changed_at=timezone.now(),
        )
        publish_replica(replica)
        record_audit(actor=actor, action="replica.register", target=replica.id, after={"model": public_id, "url": url})
    return replica


def scale(*, public_id: str, replicas: int, actor: str, node: str) -> Change:
    """Ask for `replicas` of the stable version to serve; its warm ones stay as many as the pool says.

    Raises UnknownModel, InvalidInput. `node`: where they go while no agent has reported yet.
    """
    pool = pool_of(public_id)
    if pool.version is None:
        raise InvalidInput(f"model {public_id!r} has no managed version: give it one with --weights", param="model")
    with transaction.atomic():
        change = want(pool=pool, version=pool.version, serving=replicas, warm=pool.warm_replicas, node=node)
        Pool.objects.filter(pk=pool.pk).update(desired_replicas=replicas)
        record_audit(actor=actor, action="pool.scale", target=public_id, after={"replicas": replicas})
    return change
