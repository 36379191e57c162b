"""The settings of an engine that have names of their own, and the flags they become (vLLM 0.32).

A version's engine arguments are what its options become and whatever else was given as flags; a setting that is given twice
is refused. A pool may set how its replicas run (POOL_FLAGS), not what they compute.
"""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from headway.errors import InvalidInput
from inference.engines.vllm import parse_engine_args
from inference.weight_uris import is_fetched, place_of

NAMES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}
POOL_FLAGS = frozenset(
    {
        "--async-scheduling",
        "--block-size",
        "--enable-chunked-prefill",
        "--enable-prefix-caching",
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--long-prefill-token-threshold",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--pipeline-parallel-size",
        "--scheduling-policy",
        "--speculative-config",
        "--tensor-parallel-size",
    }
)
"""What a pool may set: how fast and how much at once. Answers stay the version's, and so do its golden references."""
SCHEDULING_POLICIES = ("priority", "fcfs")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
MAX_SPECULATIVE_TOKENS = 32
_ANYWHERE = Path("/")
_NGRAM = re.compile(r"ngram:(?P<tokens>\d+)(?::(?P<least>\d+)-(?P<most>\d+))?")
_DRAFT = re.compile(r"draft:(?P<model>.+):(?P<tokens>\d+)")


@dataclass(frozen=True)
class EngineOptions:
    """None: the engine's default, or the node's (docs/operations.md)."""

    max_model_len: int | None = None
    """Tokens of context."""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    batch_cap: int | None = None
    """Sequences at once in the engine."""
    max_batched_tokens: int | None = None
    """Of one engine step: the budget of chunked prefill."""
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilisation: float | None = None
    scheduling_policy: str | None = None
    speculate: str | None = None
    """ngram:TOKENS, ngram:TOKENS:MIN-MAX (of the prompt's piece that is looked up), or draft:WEIGHTS:TOKENS."""

    def check(self) -> None:
        """Raises InvalidInput for what no engine could be started with."""
        for name, most in (("max_model_len", 10**8), ("batch_cap", 10**5), ("max_batched_tokens", 10**7)):
            _check_whole(name, getattr(self, name), most)
        for name in ("tensor_parallel", "pipeline_parallel"):
            _check_whole(name, getattr(self, name), 1024)
        if self.gpu_memory_utilisation is not None and not 0 < self.gpu_memory_utilisation <= 1:
            raise InvalidInput("gpu_memory_utilisation lies between 0 and 1", param="gpu_memory_utilisation")
        for name, known in (("scheduling_policy", SCHEDULING_POLICIES), ("kv_cache_dtype", KV_CACHE_DTYPES)):
            if getattr(self, name) not in (None, *known):
                raise InvalidInput(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}", param=name)
        self._check_together()
        self.speculative_config()

    def _check_together(self) -> None:
        budget = self.max_batched_tokens
        if budget is not None and self.batch_cap is not None and budget < self.batch_cap:
            raise InvalidInput(
                f"max_batched_tokens ({budget}) must not be below batch_cap ({self.batch_cap}): each of them adds a token",
                param="max_batched_tokens",
            )
        is_whole = self.chunked_prefill is False
        if is_whole and budget is not None and self.max_model_len is not None and budget < self.max_model_len:
            raise InvalidInput(
                f"without chunked prefill a prompt must fit one step: max_batched_tokens ({budget}) is below max_model_len "
                f"({self.max_model_len})",
                param="max_batched_tokens",
            )

    def speculative_config(self) -> dict[str, object] | None:
        """Raises InvalidInput."""
        text = self.speculate
        if text is None:
            return None
        ngram, draft = _NGRAM.fullmatch(text), _DRAFT.fullmatch(text)
        if ngram is not None:
            config: dict[str, object] = {"method": "ngram"}
            if ngram["least"]:
                if not 1 <= int(ngram["least"]) <= int(ngram["most"]):
                    raise InvalidInput(
                        f"speculate: {text!r} looks up pieces from MIN to MAX tokens, 1 at least", param="speculate"
                    )
                config |= {"prompt_lookup_min": int(ngram["least"]), "prompt_lookup_max": int(ngram["most"])}
            tokens = int(ngram["tokens"])
        elif draft is not None:
            folder = str(place_of(draft["model"], _ANYWHERE))  # or it says what is wrong with it
            model = draft["model"] if is_fetched(draft["model"]) else folder
            config, tokens = {"method": "draft_model", "model": model}, int(draft["tokens"])
        else:
            raise InvalidInput(
                f"speculate is ngram:TOKENS, ngram:TOKENS:MIN-MAX or draft:WEIGHTS:TOKENS, not {text!r}", param="speculate"
            )
        if not 1 <= tokens <= MAX_SPECULATIVE_TOKENS:
            raise InvalidInput(f"speculate: from 1 to {MAX_SPECULATIVE_TOKENS} tokens ahead, not {tokens}", param="speculate")
        return {**config, "num_speculative_tokens": tokens}

    def words(self) -> list[str]:
        """As on the engine's command line. Raises InvalidInput."""
        self.check()
        words: list[str] = []
        for name, flag in (
            ("max_model_len", "--max-model-len"),
            ("tensor_parallel", "--tensor-parallel-size"),
            ("pipeline_parallel", "--pipeline-parallel-size"),
            ("batch_cap", "--max-num-seqs"),
            ("max_batched_tokens", "--max-num-batched-tokens"),
            ("kv_cache_dtype", "--kv-cache-dtype"),
            ("gpu_memory_utilisation", "--gpu-memory-utilization"),
            ("scheduling_policy", "--scheduling-policy"),
        ):
            value = getattr(self, name)
            words += [flag, str(value)] if value is not None else []
        for is_on, flag in ((self.chunked_prefill, "chunked-prefill"), (self.prefix_caching, "prefix-caching")):
            words += [f"--enable-{flag}" if is_on else f"--no-enable-{flag}"] if is_on is not None else []
        speculative = self.speculative_config()
        return words + (["--speculative-config", json.dumps(speculative)] if speculative is not None else [])


OPTION_NAMES = tuple(field.name for field in fields(EngineOptions))


def joined(options: EngineOptions, engine_args: list[str]) -> list[str]:
    """Raises InvalidInput where a setting is given as an option and as a flag, or twice as a flag."""
    flags = [setting_of(flag) for flag, _ in parse_engine_args(tuple(engine_args))]
    words = options.words()
    named = {setting_of(flag) for flag, _ in parse_engine_args(tuple(words))}
    for flag in flags:
        if flag in named:
            raise InvalidInput(f"engine_args must not set {flag}: an option of its own does", param="engine_args")
        if flag in POOL_FLAGS and flags.count(flag) > 1:
            raise InvalidInput(f"engine_args set {flag} more than once", param="engine_args")
    return [*words, *engine_args]


def over(version_args: list[str], pool_args: list[str]) -> list[str]:
    """A version's arguments with its pool's in place of those of the same settings."""
    if not pool_args:
        return list(version_args)
    of_pool = {setting_of(flag) for flag, _ in parse_engine_args(tuple(pool_args))}
    kept = [item for item in parse_engine_args(tuple(version_args)) if setting_of(item[0]) not in of_pool]
    return [word for flag, values in kept for word in (flag, *values)] + list(pool_args)


def check_pool_args(pool_args: list[str]) -> None:
    """Raises InvalidInput."""
    joined(EngineOptions(), pool_args)
    for flag, _values in parse_engine_args(tuple(pool_args)):
        if setting_of(flag) not in POOL_FLAGS:
            raise InvalidInput(f"a pool cannot set {flag}: register a version with it", param="engine_args")


def setting_of(flag: str) -> str:
    """One name for a setting: its long flag, without `--no-`, without what follows a dot."""
    return NAMES.get(flag, flag).replace("--no-", "--", 1).partition(".")[0]


def _check_whole(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise InvalidInput(f"{name} is from 1 to {most}", param=name)
