"""The registry (models, versions, pools, replicas) and the feed that carries it to the data plane."""

import uuid

from django.db import models

from inference import eval_models, fleet_models, shadow_models  # noqa: F401  tables with a module of their own
from inference.weight_models import CopyState as CopyState
from inference.weight_models import WeightCopy as WeightCopy


class Model(models.Model):
    """What a customer asks for by its public id (which may contain slashes)."""

    public_id = models.CharField(max_length=200, unique=True)
    description = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.public_id


class ModelVersion(models.Model):
    """Weights plus the engine that runs them, for good: nothing of what it computes changes after it was made.

    `weights_digest` is filled in once, when the weights are first staged; when it retires is said later, too.
    """

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    weights_uri = models.CharField(max_length=500)
    weights_digest = models.CharField(max_length=64, blank=True)
    engine_environment = models.CharField(max_length=100)
    engine_args = models.JSONField(default=list)
    dtype = models.CharField(max_length=16, default="auto")
    # [{"prompt": str, "messages": [...], "expect": regex or "", "max_tokens": int}]: see inference/node/golden.py
    golden_prompts = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200, blank=True)
    retires_at = models.DateTimeField(null=True, blank=True, help_text="announced: nobody stays on it beyond")
    retired_at = models.DateTimeField(null=True, blank=True, help_text="it never serves again")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("model", "number"), name="one_number_per_model"),)

    def __str__(self) -> str:
        return f"{self.model} v{self.number}"


class GoldenReference(models.Model):
    """What the first certified replica answered: token log-probabilities per golden prompt."""

    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="golden_references")
    engine_environment = models.CharField(max_length=100)
    dtype = models.CharField(max_length=16)
    machine_kind = models.CharField(max_length=100)
    # One list of floats (nats) a golden prompt.
    logprobs = models.JSONField()
    recorded_from = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("version", "engine_environment", "dtype", "machine_kind"), name="one_golden_reference_per_kind"
            ),
        )

    def __str__(self) -> str:
        return f"{self.version} on {self.machine_kind} ({self.dtype})"


class Tokeniser(models.Model):
    """How versions count tokens: what inference/tokenising/bundle.py encodes, by its SHA-256. Never changed, seldom added."""

    digest = models.CharField(primary_key=True, max_length=64)
    # Compressed (zlib): some megabytes become about a third.
    content = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.digest[:12]


class Pool(models.Model):
    """Replicas of one model that are interchangeable, and how many of them are wanted."""

    model = models.OneToOneField(Model, on_delete=models.PROTECT, related_name="pool")
    version = models.ForeignKey(ModelVersion, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=64, unique=True)
    max_in_flight = models.PositiveIntegerField(default=16, help_text="requests at once on one replica, at most")
    min_in_flight = models.PositiveIntegerField(default=1, help_text="the batch cap goes no lower, however slow tokens come")
    max_queued = models.PositiveIntegerField(
        default=256, help_text="requests waiting in front of the pool, of all versions together"
    )
    engine_args = models.JSONField(default=list, blank=True, help_text="for all its replicas, over those of their version")
    desired_replicas = models.PositiveIntegerField(default=0, help_text="that serve the stable version; see services/wanted.py")
    is_autoscaled = models.BooleanField(default=False, help_text="the autoscaler sets desired_replicas, between the two bounds")
    min_replicas = models.PositiveIntegerField(default=0)
    max_replicas = models.PositiveIntegerField(default=1)
    warm_replicas = models.PositiveIntegerField(default=0, help_text="certified and out of rotation, ready to serve at once")
    idle_before_zero_s = models.PositiveIntegerField(default=900, help_text="without a request, before the last replica goes")
    hold_limit_s = models.PositiveIntegerField(default=60, help_text="a request waits so long for a pool at zero to wake")
    # What latency each tier is to have; null: the default of inference.policy.brain_tunables.DEFAULT_TARGETS.
    interactive_ttft_ms = models.PositiveIntegerField(null=True, blank=True)
    interactive_inter_token_ms = models.PositiveIntegerField(null=True, blank=True)
    standard_ttft_ms = models.PositiveIntegerField(null=True, blank=True)
    standard_inter_token_ms = models.PositiveIntegerField(null=True, blank=True)
    batch_ttft_ms = models.PositiveIntegerField(null=True, blank=True)
    batch_inter_token_ms = models.PositiveIntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class ReplicaState(models.TextChoices):
    REQUESTED = "requested"
    STAGING = "staging"
    STARTING = "starting"
    CERTIFYING = "certifying"
    WARM = "warm"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_S = ReplicaState
# Every other move is refused. `failed` may come from any state but the last; from it an agent tries again, or gives up.
TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    _S.REQUESTED: frozenset({_S.STAGING, _S.CERTIFYING, _S.STOPPED, _S.FAILED}),
    _S.STAGING: frozenset({_S.STARTING, _S.STOPPED, _S.FAILED}),
    _S.STARTING: frozenset({_S.CERTIFYING, _S.STOPPED, _S.FAILED}),
    _S.CERTIFYING: frozenset({_S.READY, _S.WARM, _S.STOPPED, _S.FAILED}),
    _S.WARM: frozenset({_S.READY, _S.STOPPED, _S.FAILED}),
    _S.READY: frozenset({_S.DRAINING, _S.CERTIFYING, _S.FAILED}),
    _S.DRAINING: frozenset({_S.WARM, _S.STOPPED, _S.FAILED}),
    _S.FAILED: frozenset({_S.REQUESTED, _S.STOPPED}),
    _S.STOPPED: frozenset(),
}


class ReplicaKind(models.TextChoices):
    VLLM = "vllm"
    OPENAI = "openai"


class Replica(models.Model):
    """One engine that serves a version: a managed one names its node, an external one its URL."""

    id = models.CharField(primary_key=True, max_length=32, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="replicas")
    version = models.ForeignKey(ModelVersion, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=16, choices=ReplicaKind.choices, default=ReplicaKind.VLLM)
    node = models.CharField(max_length=100, blank=True, help_text="empty for an external replica")
    url = models.CharField(max_length=500, blank=True, help_text="http(s)://host:port or unix:/path")
    upstream_model = models.CharField(max_length=200, help_text="the model's name at the engine")
    state = models.CharField(max_length=16, choices=ReplicaState.choices, default=ReplicaState.REQUESTED)
    reason = models.CharField(max_length=1000, blank=True)
    is_wanted = models.BooleanField(default=True, help_text="no: drain it, then stop it")
    is_standby = models.BooleanField(default=False, help_text="wanted warm: certified, and out of rotation")
    zone = models.CharField(max_length=64, blank=True, help_text="of its node, when it was asked for")
    replaced_by = models.CharField(max_length=32, blank=True, help_text="who serves in its place; it goes once that one serves")
    epoch = models.PositiveIntegerField(default=0, help_text="how often its engine was started")
    engines_taken = models.PositiveIntegerField(
        default=0, db_default=0, help_text="of its engines: they went with their node or were stopped by hand, and did not fail"
    )
    tokeniser = models.CharField(max_length=64, blank=True, help_text="digest of what counts prompts as its engine does")
    max_model_len = models.PositiveIntegerField(default=0, help_text="tokens of context, as its engine says; 0: not known")
    changed_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id


class ExternalProbe(models.Model):
    """When an external replica was last asked for a token; a row of its own, so that probing never touches the replica's."""

    replica = models.OneToOneField(Replica, primary_key=True, on_delete=models.CASCADE, related_name="+")
    probed_at = models.DateTimeField(null=True, help_text="whoever moves it forward does the probe")
    failures = models.PositiveIntegerField(default=0, help_text="in a row")

    def __str__(self) -> str:
        return f"probe of {self.replica_id}"


class EngineCount(models.Model):
    """The newest that is known of one engine's own counters, by replica and epoch (services/engine_counters.py)."""

    replica = models.CharField(max_length=32)
    epoch = models.PositiveIntegerField()
    pool = models.CharField(max_length=64, blank=True)
    max_model_len = models.PositiveIntegerField(default=0)
    prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    # Of the node agent's own requests: known, and at most.
    own_prompt_tokens = models.BigIntegerField(default=0)
    own_completion_tokens = models.BigIntegerField(default=0)
    own_max_prompt_tokens = models.BigIntegerField(default=0)
    own_max_completion_tokens = models.BigIntegerField(default=0)
    open_requests = models.PositiveIntegerField(default=0)
    is_whole = models.BooleanField(help_text="the agent's own requests were counted since the engine's start")
    began_at = models.DateTimeField(null=True)
    # The counters were read at some moment between.
    counted_from = models.DateTimeField()
    counted_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("replica", "epoch"), name="one_count_per_engine_start"),)

    def __str__(self) -> str:
        return f"{self.replica} epoch {self.epoch}"


class NodeHeartbeat(models.Model):
    """A node agent that is alive."""

    name = models.CharField(primary_key=True, max_length=100)
    agent = models.CharField(max_length=32, blank=True, help_text="whose name it is: the id in the agent's HEADWAY_HOME")
    machine_kind = models.CharField(max_length=100)
    accelerator = models.CharField(max_length=16, blank=True, help_text="cpu or cuda: which engines run there; empty: not told")
    environments = models.JSONField(null=True, blank=True, help_text="engine environments installed there; null: not told")
    zone = models.CharField(max_length=64, blank=True)
    address = models.CharField(max_length=255, blank=True, help_text="host:port for gateways of other machines; empty: none")
    max_replicas = models.PositiveIntegerField(default=0, help_text="engines it has room for; 0: no bound is known")
    is_cordoned = models.BooleanField(default=False, help_text="an operator's: no new replica is placed here")
    seen_at = models.DateTimeField()
    lost_at = models.DateTimeField(null=True, blank=True, help_text="it was silent for too long; null: it has come back")

    def __str__(self) -> str:
        return self.name


class ControlChange(models.Model):
    """The feed: what the data plane must know, one whole object a row, append-only, polled by id.

    The newest row of a (kind, key) is the truth; `payload` null means the object is gone. Rows are committed in the
    order of their ids (services/control.py), so a reader that has seen id N has seen all before it.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=16)
    key = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = (models.Index(fields=("kind", "key", "id"), name="control_change_by_object"),)

    def __str__(self) -> str:
        return f"{self.id} {self.kind} {self.key}"


class Lease(models.Model):
    """Who alone may do something, and where it is reached: moved by UPDATE ... WHERE epoch = expected (services/lease.py)."""

    name = models.CharField(primary_key=True, max_length=32)
    holder = models.CharField(max_length=200)
    address = models.CharField(max_length=300, blank=True, help_text="unix:/path or tcp://host:port; empty: given back")
    epoch = models.PositiveBigIntegerField(help_text="one more with each new holder")
    renewed_at = models.DateTimeField()
    members = models.JSONField(default=list, help_text="gateways that may hold grants of whoever decided last")
    is_open = models.BooleanField(default=True, help_text="its holder decides; no: he may not be the only one yet")

    def __str__(self) -> str:
        return f"{self.name}: {self.holder} ({self.epoch})"


class GatewayFeed(models.Model):
    """How far each gateway process has applied the feed."""

    gateway = models.CharField(primary_key=True, max_length=64)
    applied_change_id = models.BigIntegerField(default=0)
    seen_at = models.DateTimeField()
    process = models.PositiveSmallIntegerField(default=1, help_text="which of the processes under one parent")
    processes = models.PositiveSmallIntegerField(default=1, help_text="how many there are under that parent")

    def __str__(self) -> str:
        return self.gateway


def new_replica_id() -> str:
    return "rep-" + uuid.uuid4().hex[:12]


# Django looks for models here.
from inference.scaling_models import PoolMinute, ReplicaStart, ScaleDecision, ScaleMemory, WakeUp  # noqa: E402, F401
