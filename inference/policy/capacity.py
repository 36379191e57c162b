"""What fits on a replica's GPUs: weights, KV cache, tokens of it, sequences at once. Plain arithmetic, in bytes.

A token's keys and values take 2 × layers × KV heads × head size × bytes a number (with multi-head latent attention:
layers × the latent's size). Tensor parallelism shares KV heads out; beyond one head a GPU they are copied.
"""

from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
GPU_BYTES = {
    "t4-16": 15_360 * MIB,
    "v100-32": 32_768 * MIB,
    "l4-24": 23_034 * MIB,
    "a10-24": 23_028 * MIB,
    "rtx4090-24": 24_564 * MIB,
    "l40s-48": 46_068 * MIB,
    "a100-40": 40_960 * MIB,
    "a100-80": 81_920 * MIB,
    "h100-80": 81_559 * MIB,
    "h200-141": 143_771 * MIB,
    "b200-180": 183_359 * MIB,
    "mi300x-192": 196_592 * MIB,
}
"""Memory as the driver reports it."""
BITS = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8": 8,
    "int8": 8,
    "fp4": 4,
    "int4": 4,
}
"""Of one number; scales of quantised weights (a few per cent) are not counted."""
KV_FORMATS = ("bfloat16", "float16", "float32", "fp8")
OVERHEAD_BYTES = 4 * GIB
"""Of a GPU: activations, captured graphs, communication buffers. An estimate; the engine measures it when it starts."""
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Shape:
    """What of a model decides about memory. `latent_size`: of multi-head latent attention; 0: there is none."""

    weights_bytes: int
    layers: int
    kv_heads: int
    head_dim: int
    attention_heads: int = 0
    """0: not known."""
    latent_size: int = 0
    max_context_tokens: int = 0
    """0: not known."""


@dataclass(frozen=True)
class Machine:
    """One replica's share. `cache_bytes`: given to the KV cache whatever else there is (CPU replicas); 0: what is left."""

    gpus: int = 1
    gpu_bytes: int = 0
    utilisation: float = 0.9
    overhead_bytes: int = OVERHEAD_BYTES
    cache_bytes: int = 0
    block_tokens: int = BLOCK_TOKENS


@dataclass(frozen=True)
class Capacity:
    weights_bytes: int
    usable_bytes: int
    """Of all the replica's GPUs, after utilisation and overhead. 0: not asked."""
    left_bytes: int
    """For the KV cache, once the weights are there."""
    kv_bytes_per_token: dict[str, int]
    """By number format of the cache."""
    kv_format: str
    cache_tokens: int
    context_tokens: int
    sequences: int
    """At once, each as long as the context."""


@dataclass(frozen=True)
class DoesNotFit:
    reason: str


def kv_bytes_per_token(shape: Shape, kv_format: str, *, gpus: int = 1) -> int:
    """Over all the replica's GPUs."""
    if shape.latent_size:  # each GPU keeps the whole latent
        return shape.layers * shape.latent_size * gpus * BITS[kv_format] // 8
    heads = -(-shape.kv_heads // gpus) * gpus
    return 2 * shape.layers * heads * shape.head_dim * BITS[kv_format] // 8


def capacity(shape: Shape, machine: Machine, *, kv_format: str, context_tokens: int) -> Capacity | DoesNotFit:
    """`context_tokens` 0: the model's own."""
    uneven = _uneven(shape, machine.gpus)
    if uneven is not None:
        return uneven
    context_tokens = context_tokens or shape.max_context_tokens
    if shape.max_context_tokens and context_tokens > shape.max_context_tokens:
        return DoesNotFit(f"the model's context is {shape.max_context_tokens:,} tokens, not {context_tokens:,}")
    usable_bytes = machine.gpus * max(0, int(machine.gpu_bytes * machine.utilisation) - machine.overhead_bytes)
    left_bytes = machine.cache_bytes or usable_bytes - shape.weights_bytes
    if left_bytes <= 0:
        gpus = "one GPU has" if machine.gpus == 1 else f"{machine.gpus} GPUs have"
        return DoesNotFit(f"its weights take {gb(shape.weights_bytes)}, and {gpus} {gb(usable_bytes)} for them")
    by_format = {name: kv_bytes_per_token(shape, name, gpus=machine.gpus) for name in KV_FORMATS}
    blocks = left_bytes // (by_format[kv_format] * machine.block_tokens)
    cache_tokens = blocks * machine.block_tokens
    sequences = blocks // -(-context_tokens // machine.block_tokens) if context_tokens else 0
    if context_tokens and not sequences:
        return DoesNotFit(
            f"one sequence of {context_tokens:,} tokens needs {gb(context_tokens * by_format[kv_format])} of KV cache, "
            f"and {gb(left_bytes)} are left for it ({cache_tokens:,} tokens)"
        )
    if not cache_tokens:
        return DoesNotFit(f"{gb(left_bytes)} are left for the KV cache: not one block of {machine.block_tokens} tokens")
    return Capacity(
        weights_bytes=shape.weights_bytes,
        usable_bytes=usable_bytes,
        left_bytes=left_bytes,
        kv_bytes_per_token=by_format,
        kv_format=kv_format,
        cache_tokens=cache_tokens,
        context_tokens=context_tokens,
        sequences=sequences,
    )


def _uneven(shape: Shape, gpus: int) -> DoesNotFit | None:
    if shape.attention_heads and shape.attention_heads % gpus:
        return DoesNotFit(f"{shape.attention_heads} attention heads cannot be shared out over {gpus} GPUs")
    is_shared = shape.latent_size or shape.kv_heads % gpus == 0 or gpus % shape.kv_heads == 0
    return None if is_shared else DoesNotFit(f"{shape.kv_heads} KV heads cannot be shared out over {gpus} GPUs")


def weights_bytes(params: int, weights_format: str) -> int:
    return params * BITS[weights_format] // 8


def gb(amount_bytes: int) -> str:
    """Decimal, like disks and the issue: 1 GB is 10^9 bytes."""
    return f"{amount_bytes / 1e9:,.1f} GB" if amount_bytes >= 1e9 else f"{amount_bytes / 1e6:,.1f} MB"
