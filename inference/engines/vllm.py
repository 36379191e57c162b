"""vLLM: the flags and environment a server gets, and what its metrics mean. Facts from vLLM 0.32 (ENGINE.md).

The only module that knows vLLM's names; its own code is imported nowhere in the platform.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import InvalidInput
from inference.engines.environments import EngineKind

SERVER_MODULE = "vllm.entrypoints.launchers.api_server.entry"
TAG_VARIABLE = "HEADWAY_REPLICA_TAG"

# Ours to set: where it listens, under which name, with whose weights, and that it writes nobody's text into its log.
OWNED_FLAGS = (
    *("--uds", "--host", "--port", "--api-key", "--served-model-name", "--model", "--model-tag", "--config"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--root-path", "--headless", "--grpc"),
    *("--enable-log-requests", "--enable-log-outputs"),
)
# Handed on from the agent's environment. Everything else stays out: it may hold our secrets, or VLLM_CPU_KVCACHE_SPACE,
# which overrides --kv-cache-memory-bytes.
INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
    }
)
INHERITED_PREFIXES = ("NVIDIA_", "NCCL_")


@dataclass(frozen=True)
class EngineSettings:
    """What every server of this machine gets unless its version says otherwise."""

    cpu_kv_cache_bytes: int = 256 * 2**20
    """HEADWAY_ENGINE_CPU_KV_BYTES: memory for the KV cache of one replica on CPU."""
    cpu_threads: int = 1
    """HEADWAY_ENGINE_CPU_THREADS: OpenMP threads of one replica on CPU."""
    cpu_max_batched_tokens: int = 256
    """HEADWAY_ENGINE_CPU_MAX_BATCHED_TOKENS: tokens of one engine step on CPU; more makes running streams stutter."""
    sleeps: bool = False
    """HEADWAY_ENGINE_SLEEP: on CUDA, a replica that stands by gives back the memory of its GPU (vLLM's sleep mode)."""
    shutdown_timeout_s: int = 30
    """HEADWAY_ENGINE_SHUTDOWN_S: how long a server that was told to end may finish its open streams."""


@dataclass(frozen=True)
class ServerSpec:
    """One server: `weights` is a local folder, `socket` the Unix socket it listens on."""

    kind: EngineKind
    weights: Path
    served_name: str
    socket: Path
    dtype: str
    max_num_seqs: int
    engine_args: tuple[str, ...] = ()


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def parse_engine_args(words: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """[(flag, its values)], flags with dashes for underscores and `--flag=value` taken apart.

    Raises InvalidInput for a flag that is ours, or a value without a flag.
    """
    parsed: list[tuple[str, list[str]]] = []
    for word in words:
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-")
            # The engine's parser takes a beginning of a flag for the flag.
            owned = next((name for name in OWNED_FLAGS if len(flag) > 2 and name.startswith(flag)), None)
            if owned:
                raise InvalidInput(f"engine_args must not set {flag}: {owned} is set by the node agent", param="engine_args")
            parsed.append((flag, [value] if equals else []))
        elif parsed:
            parsed[-1][1].append(word)
        else:
            raise InvalidInput(f"engine_args must begin with a flag, not {word!r}", param="engine_args")
    return parsed


def _defaults(spec: ServerSpec, settings: EngineSettings) -> list[tuple[str, list[str]]]:
    flags: list[tuple[str, list[str]]] = [
        ("--shutdown-timeout", [str(settings.shutdown_timeout_s)]),
        ("--enable-prompt-tokens-details", []),
        ("--disable-uvicorn-access-log", []),
        ("--max-num-seqs", [str(spec.max_num_seqs)]),
        ("--dtype", [spec.dtype]),
        # When KV blocks run out, the least urgent sequence is preempted: requests carry their grant's number.
        ("--scheduling-policy", ["priority"]),
    ]
    if spec.kind is EngineKind.CPU:
        flags += [
            ("--enforce-eager", []),
            ("--block-size", ["32"]),
            ("--kv-cache-memory-bytes", [str(settings.cpu_kv_cache_bytes)]),
            ("--max-num-batched-tokens", [str(settings.cpu_max_batched_tokens)]),
        ]
    elif settings.sleeps:
        flags.append(("--enable-sleep-mode", []))
    return flags


def server_arguments(spec: ServerSpec, settings: EngineSettings) -> tuple[str, ...]:
    """The server's command line: ours, then defaults, then the version's own. Raises InvalidInput (parse_engine_args)."""
    wanted = parse_engine_args(spec.engine_args)
    overridden = {flag.replace("--no-", "--", 1) for flag, _ in wanted}
    kept = [item for item in _defaults(spec, settings) if item[0] not in overridden]
    words = ["--model", str(spec.weights), "--served-model-name", spec.served_name, "--uds", str(spec.socket)]
    for flag, values in [*kept, *wanted]:
        words += [flag, *values]
    return tuple(words)


def server_environment(
    kind: EngineKind, *, tag: str, cache: Path, settings: EngineSettings, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a server (or of the process that forks them). `tag` marks it as this node's (TAG_VARIABLE)."""
    environment = {name: value for name, value in base.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}
    environment |= {
        TAG_VARIABLE: tag,
        "SPT_NOENV": "1",  # process titles must not overwrite /proc/PID/environ, where the tag is looked for
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "PYTHONUNBUFFERED": "1",
    }
    if kind is EngineKind.CPU:
        environment |= {
            "OMP_NUM_THREADS": str(settings.cpu_threads),
            "OPENBLAS_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    elif settings.sleeps:
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # else it has no /sleep and no /wake_up
    return environment


def process_environment(kind: EngineKind, *, tag: str, cache: Path, settings: EngineSettings) -> dict[str, str]:
    return server_environment(kind, tag=tag, cache=cache, settings=settings, base=os.environ)


@dataclass(frozen=True)
class EngineLoad:
    """One scrape of /metrics. `progress` grows with every engine step, prompt token and generated token."""

    num_running: int
    num_waiting: int
    kv_usage_ratio: float
    progress: float
    prompt_tokens: int | None = None
    """Since its start: of each prompt (cached tokens among them) once, with its first token. None: it does not say."""
    completion_tokens: int | None = None
    prefix_queries: int = 0
    """Tokens of prompts looked for in the prefix cache since its start, and those found there."""
    prefix_hits: int = 0
    proposed_tokens: int | None = None
    """By speculation, since its start. None: it does not speculate."""
    accepted_tokens: int | None = None

    @property
    def acceptance_ratio(self) -> float | None:
        """None: nothing was proposed yet."""
        if not self.proposed_tokens or self.accepted_tokens is None:
            return None
        return self.accepted_tokens / self.proposed_tokens


_PROGRESS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_LINE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def parse_metrics(text: str) -> EngineLoad:
    """From the Prometheus text, summed over engines; what is missing counts as 0."""
    totals: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        totals[name] = totals.get(name, 0.0) + float(value)
    return EngineLoad(
        num_running=int(totals.get("vllm:num_requests_running", 0)),
        num_waiting=int(totals.get("vllm:num_requests_waiting", 0)),
        kv_usage_ratio=totals.get("vllm:kv_cache_usage_perc", 0.0),
        progress=sum(totals.get(name, 0.0) for name in _PROGRESS),
        prompt_tokens=_whole(totals.get("vllm:prompt_tokens_total")),
        completion_tokens=_whole(totals.get("vllm:generation_tokens_total")),
        prefix_queries=int(totals.get("vllm:prefix_cache_queries_total", 0)),
        prefix_hits=int(totals.get("vllm:prefix_cache_hits_total", 0)),
        proposed_tokens=_whole(totals.get("vllm:spec_decode_num_draft_tokens_total")),
        accepted_tokens=_whole(totals.get("vllm:spec_decode_num_accepted_tokens_total")),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True)
class RenderingArgs:
    """What a version's arguments say about how prompts are written. `chat_template`: a file or the template itself."""

    chat_template: str = ""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    drops_unused_tools: bool = False


# With one of these the engine does not use the tokeniser that lies beside its weights, or not as it lies there.
_OTHER_TOKENISER = frozenset(
    {"--tokenizer", "--tokenizer-mode", "--tokenizer-revision", "--skip-tokenizer-init", "--io-processor-plugin"}
)


def rendering_args(engine_args: tuple[str, ...]) -> RenderingArgs | None:
    """None where prompts cannot be counted outside the engine. Raises InvalidInput (parse_engine_args)."""
    flags = dict(parse_engine_args(engine_args))
    if flags.keys() & _OTHER_TOKENISER:
        return None
    try:
        kwargs = json.loads((flags.get("--default-chat-template-kwargs") or ["{}"])[0])
    except json.JSONDecodeError:
        return None
    return RenderingArgs(
        chat_template=(flags.get("--chat-template") or [""])[0],
        template_kwargs=kwargs,
        drops_unused_tools="--exclude-tools-when-tool-choice-none" in flags,
    )
