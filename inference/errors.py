"""HeadwayError
├── NotFound
│   ├── UnknownModel            fix the model's name
│   ├── UnknownVersion          fix the version's name
│   ├── UnknownRollout          fix the rollout's number
│   ├── UnknownEval             fix the name of the eval set, or the number of the run
│   ├── UnknownReplica          fix the replica's id
│   └── UnknownNode, UnknownZone    fix the name
├── Conflict ── ModelExists, VersionIsImmutable, IllegalTransition, RolloutOpen, RolloutMoved, ZoneCannotGo, NodeNameTaken
├── SecondPersonNeeded          have another operator approve it
├── InvalidInput
│   ├── BadWeights              fix the weights' URI, or the weights
│   ├── NoNodeHasRoom           add a node, raise its bound, or uncordon one
│   ├── BadEngineArguments      fix the engine arguments
│   ├── TooLarge                choose a smaller model, a shorter context or more GPUs
│   ├── BadEvalSet              fix the file of cases, at the line it names
│   └── RequestRefused          fix the request (the gateway's 4xx)
├── RateLimited                 retry when retry-after has passed
├── QuotaSpent                  raise the budget, or pay
│   └── BalanceSpent            add credit
└── Unavailable
    ├── NoReplicaReady          retry: the model is registered, none of its replicas serves now
    ├── QueueFull               retry later: all replicas are busy and the queue is full
    ├── QueueTimeout            retry later: no replica became free in time
    ├── DeadlineNotMet          retry later: the predicted wait is too long
    ├── NoRoom                  free disk space, raise the budget, or retire a version
    └── EngineFailed            retry: the engine failed before or during the answer
"""

from headway.errors import Conflict, HeadwayError, InvalidInput, NotFound, Unavailable


class UnknownModel(NotFound):
    """Fix the model's name; GET /v1/models lists them."""

    code = "model_not_found"


class UnknownVersion(NotFound):
    """Fix the version's name; `manage.py rollout list` and the registry's page name them."""

    code = "version_not_found"


class UnknownRollout(NotFound):
    """Fix the rollout's number; `manage.py rollout list` lists them."""

    code = "rollout_not_found"


class UnknownReplica(NotFound):
    """Fix the replica's id; `manage.py status` lists them."""

    code = "replica_not_found"


class UnknownEval(NotFound):
    """Fix the name of the eval set, or the number of the run; there is no such one."""

    code = "eval_not_found"


class ModelExists(Conflict):
    """Choose another public id; this one is taken."""

    code = "model_exists"


class VersionIsImmutable(Conflict):
    """Register a new version instead; this one never changes."""

    code = "version_is_immutable"


class IllegalTransition(Conflict):
    """Look again; the replica is not in the state this move starts from."""

    code = "illegal_transition"


class RolloutOpen(Conflict):
    """End the model's open rollout first; there is one at a time."""

    code = "rollout_open"


class RolloutMoved(Conflict):
    """Look again; the rollout is not in a state in which that can be done."""

    code = "rollout_moved"


class SecondPersonNeeded(HeadwayError):
    """Have another operator approve it; by the two-person rule nobody promotes alone what they made."""

    code = "second_person_needed"
    http_status = 403
    error_type = "invalid_request_error"


class BadWeights(InvalidInput):
    """Fix the weights' URI, or the weights; nothing was staged."""

    code = "bad_weights"


class NoNodeHasRoom(InvalidInput):
    """Add a node, raise its bound, or uncordon one: no node may take a further replica. `too_many` of those asked for."""

    code = "no_room"

    def __init__(self, message: str, *, param: str | None = None, too_many: int = 1) -> None:
        super().__init__(message, param=param, too_many=too_many)
        self.too_many = too_many


class UnknownNode(NotFound):
    """Fix the node's name; `manage.py status` lists them."""

    code = "node_not_found"


class NodeNameTaken(Conflict):
    """Give this agent another name, or forget the node once its machine is gone."""

    code = "node_name_taken"


class UnknownZone(NotFound):
    """Fix the zone's name; `manage.py status` lists the nodes with theirs."""

    code = "zone_not_found"


class ZoneCannotGo(Conflict):
    """Add room elsewhere, or force it: without that zone something would not be served."""

    code = "zone_cannot_go"


class BadEngineArguments(InvalidInput):
    """Fix the engine arguments; the engine's own parser refused them."""

    code = "bad_engine_arguments"


class TooLarge(InvalidInput):
    """Choose a smaller model, a shorter context, or more GPUs."""

    code = "does_not_fit"


class NoRoom(Unavailable):
    """Free disk space, raise the node's budget, or retire a version; nothing was staged, and it is tried again."""

    code = "no_room_for_weights"


class BadEvalSet(InvalidInput):
    """Fix the file of cases, at the line it names; nothing was imported."""

    code = "bad_eval_set"


class NoReplicaReady(Unavailable):
    """Retry after a while; the model is registered, none of its replicas serves now."""

    code = "model_unavailable"


class QueueFull(Unavailable):
    """Retry later; every replica is busy and the queue in front of them is full."""

    code = "queue_full"
    http_status = 429
    error_type = "rate_limit_error"


class QueueTimeout(Unavailable):
    """Retry later; no replica became free in time."""

    code = "queue_timeout"


class DeadlineNotMet(Unavailable):
    """Retry later; the predicted wait is longer than the request may wait."""

    code = "deadline_not_met"


class RateLimited(HeadwayError):
    """Retry when `retry-after` has passed; a limit of the tenant, the key or the model is reached."""

    code = "rate_limit_exceeded"
    http_status = 429
    error_type = "rate_limit_error"


class QuotaSpent(HeadwayError):
    """Raise the budget or pay; the month's budget or the balance does not allow this request."""

    code = "insufficient_quota"
    http_status = 429
    error_type = "insufficient_quota"


class BalanceSpent(QuotaSpent):
    """Add credit; what was paid in advance does not allow this request."""

    code = "credit_balance_exhausted"


class EngineFailed(Unavailable):
    """Retry; the engine failed before the answer was whole."""

    code = "engine_error"
    http_status = 502
