"""Answer `manage.py capacity`: a model by its folder, by a staged version or by numbers, on a kind of GPU."""

from dataclasses import dataclass
from pathlib import Path

from headway.errors import InvalidInput
from inference.engines.model_config import shape_of
from inference.engines.vllm import parse_engine_args
from inference.errors import TooLarge
from inference.policy.capacity import (
    BITS,
    GPU_BYTES,
    KV_FORMATS,
    MIB,
    Capacity,
    DoesNotFit,
    Machine,
    Shape,
    capacity,
    weights_bytes,
)
from inference.services.registry import find_version
from inference.weight_uris import place_of

NUMBERS = ("params_b", "layers", "kv_heads", "head_dim")
DEFAULT_UTILISATION = 0.9
DEFAULT_FORMAT = "bfloat16"
MAX_GPUS = 1024
MAX_OVERHEAD_GIB = 1024


@dataclass(frozen=True)
class Asked:
    """None: not said."""

    model: str | None = None
    params_b: float | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    utilisation: float | None = None
    overhead_gib: float = 4.0
    kv_cache_mib: int | None = None
    block_tokens: int = 16
    context: int | None = None


def fits(asked: Asked, *, weights: Path) -> Capacity:
    """`weights`: HOME.weights. Raises TooLarge with why, InvalidInput, BadWeights, UnknownModel."""
    shape, flags = _shape(asked, weights)
    kv_format = asked.kv_dtype or _kv_format(flags)
    found = capacity(shape, _machine(asked, flags), kv_format=kv_format, context_tokens=_context(asked, flags))
    if isinstance(found, DoesNotFit):
        raise TooLarge(f"it does not fit: {found.reason}")
    return found


def _shape(asked: Asked, weights: Path) -> tuple[Shape, dict[str, str]]:
    """With the version's engine arguments, the last value of each; none of a folder or of numbers."""
    given = {name: getattr(asked, name) for name in NUMBERS if getattr(asked, name) is not None}
    if asked.model is None:
        return _shape_of_numbers(given, asked.weights_dtype or DEFAULT_FORMAT), {}
    if given:
        raise InvalidInput(f"--{min(given).replace('_', '-')} goes without --model: its config.json says it", param=min(given))
    if asked.model.startswith(("/", ".")):
        return shape_of(Path(asked.model).absolute(), weights_format=asked.weights_dtype or ""), {}
    version = find_version(asked.model)
    folder = place_of(version.weights_uri, weights)
    if not (folder / "config.json").is_file():
        raise InvalidInput(f"{version} is not staged on this machine: name its folder, or give --params-b and the others")
    flags = {flag: values[-1] for flag, values in parse_engine_args(tuple(version.engine_args)) if values}
    own_format = {"half": "float16", "float": "float32"}.get(version.dtype, version.dtype)
    weights_format = asked.weights_dtype or (own_format if own_format in BITS and "--quantization" not in flags else "")
    return shape_of(folder, weights_format=weights_format), flags


def _shape_of_numbers(given: dict[str, float], weights_format: str) -> Shape:
    missing = [name for name in NUMBERS if name not in given]
    if missing:
        raise InvalidInput(f"give --model, or --{missing[0].replace('_', '-')} too", param=missing[0])
    for name, number in given.items():
        if not 0 < number < 1e6:
            raise InvalidInput(f"--{name.replace('_', '-')} must be above 0", param=name)
    return Shape(
        weights_bytes=weights_bytes(round(given["params_b"] * 1e9), weights_format),
        layers=int(given["layers"]),
        kv_heads=int(given["kv_heads"]),
        head_dim=int(given["head_dim"]),
    )


def _machine(asked: Asked, flags: dict[str, str]) -> Machine:
    gpus = asked.gpus if asked.gpus is not None else _whole(flags, ("--tensor-parallel-size", "-tp"), 1)
    utilisation = asked.utilisation
    if utilisation is None:
        utilisation = float(flags.get("--gpu-memory-utilization", DEFAULT_UTILISATION))
    if (asked.gpu is None) == (asked.kv_cache_mib is None):
        raise InvalidInput("give either --gpu or --kv-cache-mib", param="gpu")
    if not 1 <= gpus <= MAX_GPUS:
        raise InvalidInput(f"--gpus must lie between 1 and {MAX_GPUS}", param="gpus")
    if not 0 < utilisation <= 1:
        raise InvalidInput("--utilisation must lie between 0 and 1", param="utilisation")
    if (
        asked.block_tokens < 1
        or not 0 <= asked.overhead_gib < MAX_OVERHEAD_GIB
        or (asked.kv_cache_mib is not None and asked.kv_cache_mib < 1)
    ):
        raise InvalidInput(f"--block-tokens and --kv-cache-mib must be at least 1, --overhead-gib from 0 to {MAX_OVERHEAD_GIB}")
    return Machine(
        gpus=gpus,
        gpu_bytes=GPU_BYTES[asked.gpu] if asked.gpu is not None else 0,
        utilisation=utilisation,
        overhead_bytes=round(asked.overhead_gib * 2**30),
        cache_bytes=(asked.kv_cache_mib or 0) * MIB,
        block_tokens=asked.block_tokens,
    )


def _kv_format(flags: dict[str, str]) -> str:
    said = flags.get("--kv-cache-dtype", "auto")
    return "fp8" if said.startswith("fp8") else said if said in KV_FORMATS else DEFAULT_FORMAT


def _context(asked: Asked, flags: dict[str, str]) -> int:
    context = asked.context if asked.context is not None else _whole(flags, ("--max-model-len",), 0)
    if context < 0:
        raise InvalidInput("--context must be at least 1", param="context")
    return context


def _whole(flags: dict[str, str], names: tuple[str, ...], default: int) -> int:
    found = next((flags[name] for name in names if name in flags), "")
    return int(found) if found.isdigit() else default
