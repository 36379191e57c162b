"""What the API takes and gives of weights on nodes, and of what fits on a replica."""

from rest_framework import serializers as s

from inference.policy.capacity import BITS, BLOCK_TOKENS, GPU_BYTES, KV_FORMATS, OVERHEAD_BYTES
from inference.weight_models import CopyState

VERSION = "a model's public id (its stable version), or NAME:v2"


class CopiesAsked(s.Serializer):
    state = s.ChoiceField(CopyState.choices, required=False)
    node = s.CharField(required=False, max_length=100)


class CopyShape(s.Serializer):
    id = s.IntegerField()
    model = s.CharField()
    version = s.CharField()
    node = s.CharField()
    state = s.CharField()
    reason = s.CharField(allow_blank=True)
    bytes_done = s.IntegerField()
    bytes_total = s.IntegerField(help_text="0: not known yet")
    digest = s.CharField(allow_blank=True)
    last_used_at = s.DateTimeField(allow_null=True)
    keep_until = s.DateTimeField(help_text="not evicted before, though nothing needs it yet")
    changed_at = s.DateTimeField()


class NewCopies(s.Serializer):
    version = s.CharField(max_length=220, help_text=VERSION)
    nodes = s.ListField(
        child=s.CharField(max_length=100), max_length=1000, required=False, allow_null=True, default=None, allow_empty=False,
        help_text="without it: every live one that can run it",
    )  # fmt: skip


class WantedOn(s.Serializer):
    version = s.CharField()
    nodes = s.ListField(child=s.CharField())


def _count(most: int, help_text: str = "") -> s.IntegerField:
    return s.IntegerField(required=False, min_value=1, max_value=most, help_text=help_text)


class CapacityAsked(s.Serializer):
    """Names as in services.capacity.Asked; folders are for the command alone."""

    model = s.CharField(required=False, max_length=220, help_text=f"{VERSION}, staged on the site's machine")
    params_b = s.FloatField(required=False, min_value=0.001, max_value=100_000, help_text="billions; without a model")
    layers = _count(10_000)
    kv_heads = _count(100_000)
    head_dim = _count(100_000)
    weights_dtype = s.ChoiceField(sorted(BITS), required=False)
    kv_dtype = s.ChoiceField(KV_FORMATS, required=False)
    gpu = s.ChoiceField(sorted(GPU_BYTES), required=False)
    gpus = _count(1024, "of one replica")
    utilisation = s.FloatField(required=False, min_value=0.01, max_value=1)
    overhead_gib = s.FloatField(required=False, min_value=0, max_value=1000, default=OVERHEAD_BYTES / 2**30)
    kv_cache_mib = _count(10**9, "in place of a GPU")
    block_tokens = s.IntegerField(required=False, min_value=1, max_value=4096, default=BLOCK_TOKENS)
    context = _count(10**9, "tokens of one sequence")


class CapacityShape(s.Serializer):
    weights_bytes = s.IntegerField()
    usable_bytes = s.IntegerField(help_text="of the GPUs, for weights and KV cache; 0: a size of the cache was given")
    left_bytes = s.IntegerField(help_text="for the KV cache")
    kv_bytes_per_token = s.DictField(child=s.IntegerField(), help_text="by number format of the cache")
    kv_format = s.CharField()
    cache_tokens = s.IntegerField()
    context_tokens = s.IntegerField(help_text="0: not known")
    sequences = s.IntegerField(help_text="at once, each as long as the context")
