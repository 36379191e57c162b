from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from headway.tables import table
from inference.policy.capacity import BITS, BLOCK_TOKENS, GPU_BYTES, KV_FORMATS, OVERHEAD_BYTES, Capacity, gb
from inference.services.capacity import Asked, fits


class Command(HeadwayCommand):
    help = (
        "What fits on a replica: weights, KV cache, its tokens, sequences at once. Of a model's folder, a version that is "
        "staged on this machine (NAME, or NAME:v2), or of numbers. Exits with 1, and says why, where it cannot fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", help="folder (/... or ./...), or a version staged here (NAME: the stable one, NAME:v2)")
        parser.add_argument("--params-b", type=float, help="without --model: parameters, in billions")
        for name, what in (("layers", "layers"), ("kv-heads", "KV heads"), ("head-dim", "numbers of one head")):
            parser.add_argument(f"--{name}", type=int, help=f"without --model: {what}")
        parser.add_argument(
            "--weights-dtype", choices=sorted(BITS), help="default: as the folder has them; bfloat16 of numbers"
        )
        parser.add_argument("--kv-dtype", choices=KV_FORMATS, help="default: the version's, else bfloat16")
        parser.add_argument("--gpu", choices=sorted(GPU_BYTES), help="kind of GPU")
        parser.add_argument("--gpus", type=int, help="of one replica (tensor parallelism); default: the version's, else 1")
        parser.add_argument("--utilisation", type=float, help="share of a GPU that the engine takes; default 0.9")
        overhead_gib = OVERHEAD_BYTES / 2**30
        parser.add_argument(
            "--overhead-gib", type=float, default=overhead_gib, help=f"of a GPU: activations, graphs (default {overhead_gib:g})"
        )
        parser.add_argument("--kv-cache-mib", type=int, help="in place of --gpu: what the KV cache is given (CPU replicas)")
        parser.add_argument("--block-tokens", type=int, default=BLOCK_TOKENS, help=f"of one KV block (default {BLOCK_TOKENS})")
        parser.add_argument("--context", type=int, help="tokens of one sequence; default: the version's or the model's")

    def handle(self, *, json: bool, **options: Any) -> None:
        asked = Asked(**{name: options[name] for name in Asked.__dataclass_fields__})
        found = fits(asked, weights=settings.HOME.weights)
        self.print_result(_text(found), vars(found), as_json=json)


def _text(found: Capacity) -> str:
    rows: list[list[object]] = [["weights", gb(found.weights_bytes)]]
    if found.usable_bytes:
        rows.append(["memory of its GPUs for weights and KV cache", gb(found.usable_bytes)])
    rows.append(["left for the KV cache", gb(found.left_bytes)])
    for name, amount_bytes in found.kv_bytes_per_token.items():
        mark = " (used below)" if name == found.kv_format else ""
        rows.append([f"a token's keys and values in {name}{mark}", f"{amount_bytes / 1024:,.1f} KiB"])
    rows.append(["tokens in the cache of one replica", f"{found.cache_tokens:,}"])
    if found.context_tokens:
        rows.append([f"sequences at once, of {found.context_tokens:,} tokens each", f"{found.sequences:,}"])
    return table(["of one replica", "takes"], rows)
