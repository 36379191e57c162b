"""Move replicas through their states. Every move is `UPDATE ... WHERE state = expected`, and is published."""

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from inference.errors import IllegalTransition, UnknownReplica
from inference.models import TRANSITIONS, NodeHeartbeat, Replica, ReplicaState
from inference.node.remote_address import remote_url
from inference.services import control
from inference.services.replica_starts import note_move
from inference.services.version_labels import version_label

_S = ReplicaState
# From most to least worth keeping.
LIVE_STATES = (_S.READY, _S.WARM, _S.CERTIFYING, _S.STARTING, _S.STAGING, _S.REQUESTED, _S.DRAINING, _S.FAILED)
MAX_REASON_CHARS = 1000
HELD = " (not tried again by itself)"
"""How the reason of a failure ends that trying again cannot mend: somebody has to act."""
WITH_ENGINE = frozenset({_S.STARTING, _S.CERTIFYING, _S.WARM, _S.READY, _S.DRAINING})


def advance(
    *,
    replica_id: str,
    expected: ReplicaState,
    to: ReplicaState,
    reason: str = "",
    epoch: int | None = None,
    url: str | None = None,
    tokeniser: str | None = None,
    max_model_len: int | None = None,
) -> Replica:
    """Move one replica from `expected` to `to`. Raises IllegalTransition (also when someone else moved it), UnknownReplica.

    When, is told by the database's clock: nodes' own differ, and deadlines of rollouts are counted from it.
    """
    if to not in TRANSITIONS[expected]:
        raise IllegalTransition(f"a replica cannot go from {expected} to {to}")
    changes: dict[str, object] = {"state": to, "reason": reason[:MAX_REASON_CHARS], "changed_at": Now()}
    facts = {"epoch": epoch, "url": url, "tokeniser": tokeniser, "max_model_len": max_model_len}
    changes |= {name: value for name, value in facts.items() if value is not None}
    with transaction.atomic():
        rows = Replica.objects.filter(pk=replica_id, state=expected)
        if to is ReplicaState.REQUESTED:
            rows = rows.filter(is_wanted=True)  # an agent that comes back late must not bring back what was replaced
        if not rows.update(**changes):
            found = Replica.objects.filter(pk=replica_id).first()
            if found is None:
                raise UnknownReplica(f"there is no replica {replica_id!r}")
            if found.state == expected:
                raise IllegalTransition(f"replica {replica_id} is not wanted any more")
            raise IllegalTransition(f"replica {replica_id} is {found.state}, not {expected}")
        replica = Replica.objects.select_related("pool__model", "version").get(pk=replica_id)
        note_move(replica=replica, to=to, at=replica.changed_at)
        publish_replica(replica)
    return replica


def take_down(*, replica_id: str, expected: ReplicaState, reason: str) -> None:
    """Let it fail by somebody else's hand: its node is lost, it is stopped by an operator. Raises what `advance` does.

    Its engine has not failed, which is what its version's release is judged by.
    """
    with transaction.atomic():
        advance(replica_id=replica_id, expected=expected, to=_S.FAILED, reason=reason)
        if expected in WITH_ENGINE:
            Replica.objects.filter(pk=replica_id).update(engines_taken=F("engines_taken") + 1)


def _remote_url(replica: Replica) -> str:
    """Empty where gateways of other machines cannot reach it."""
    if not (replica.node and replica.url):
        return ""
    address = NodeHeartbeat.objects.filter(pk=replica.node).values_list("address", flat=True).first()
    return remote_url(address, node=replica.node, replica=replica.id, epoch=replica.epoch) if address else ""


def publish_replica(replica: Replica) -> int:
    """Tell the data plane; a replica that was stopped is gone for it. Returns the change's id."""
    gone = replica.state == ReplicaState.STOPPED
    payload = {
        "model": replica.pool.model.public_id,
        "pool": replica.pool.name,
        "version": version_label(replica.version),
        "kind": replica.kind,
        "url": replica.url,
        "remote_url": _remote_url(replica),
        "upstream_model": replica.upstream_model,
        "state": replica.state,
        "max_in_flight": replica.pool.max_in_flight,
        "epoch": replica.epoch,
        "zone": replica.zone,
        "tokeniser": replica.tokeniser,
        "max_model_len": replica.max_model_len,
    }
    return control.publish(kind="replica", key=replica.id, payload=None if gone else payload).id
