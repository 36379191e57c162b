"""What a model's folder says about its size: config.json and the headers of its safetensors files. No weights are read."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from inference.errors import BadWeights
from inference.policy.capacity import BITS, Shape, weights_bytes

MAX_HEADER_BYTES = 100 * 2**20
# Attention whose cache grows with the text. Sliding windows are counted as if they did, so the cache is never overstated.
_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_FORMATS = {"float": "float32", "half": "float16", "torch.float32": "float32"}


def shape_of(folder: Path, *, weights_format: str = "") -> Shape:
    """`weights_format`: of capacity.BITS, or empty for what the folder holds. Raises BadWeights."""
    config = _read_config(folder)
    text = config.get("text_config") or config
    kinds = set(text.get("layer_types") or []) - _ATTENTION
    if kinds:
        raise BadWeights(f"{folder}: layers of kind {min(kinds)!r} keep another state than keys and values: not computed here")
    try:
        heads = int(text["num_attention_heads"])
        latent = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 0)) if text.get("kv_lora_rank") else 0
        return Shape(
            weights_bytes=_weights_bytes(folder, weights_format or _own_format(config, text)),
            layers=int(text["num_hidden_layers"]),
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=int(text.get("head_dim") or int(text["hidden_size"]) // heads),
            attention_heads=heads,
            latent_size=latent,
            max_context_tokens=int(text.get("max_position_embeddings") or 0),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadWeights(f"{folder}: its config.json does not say what a token takes ({error!r})") from None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise BadWeights(f"{folder} is not a folder with a model: config.json: {error.strerror}") from None
    except ValueError:
        raise BadWeights(f"{folder}: its config.json is not JSON") from None
    if not isinstance(config, dict):
        raise BadWeights(f"{folder}: its config.json is no object")
    return config


def _own_format(config: dict[str, Any], text: dict[str, Any]) -> str:
    """Empty: quantised, so that only the files themselves say what they take."""
    if config.get("quantization_config"):
        return ""
    said = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "")
    found = _FORMATS.get(said, said.removeprefix("torch."))
    # The engine takes float32 checkpoints as they are on a CPU, and as bfloat16 or float16 where `--dtype` says so.
    return found if found in BITS else ""


def _weights_bytes(folder: Path, weights_format: str) -> int:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadWeights(f"{folder} holds no safetensors files: say how large it is with --params-b")
    if not weights_format:
        return sum(file.stat().st_size for file in files)
    return weights_bytes(sum(_num_params(file) for file in files), weights_format)


def _num_params(file: Path) -> int:
    try:
        with file.open("rb") as content:
            (header_bytes,) = struct.unpack("<Q", content.read(8))
            if header_bytes > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(content.read(header_bytes))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise BadWeights(f"{file} is no safetensors file ({error})") from None
