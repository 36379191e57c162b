"""What a process that forks servers reads before them, besides importing the engine: run in the engine's environment.

`import_more`: modules that a server imports while it starts. `register_kernels`: what replaces Triton's kernels on CPU, for
which every server goes through all attributes of all modules. `Tokenisers`: those of models whose servers were forked here,
read once more while nothing is asked, so that the next server of the same model has them: vLLM 0.32 reads a model's
tokeniser twice and copies it twice while a server starts. Nothing here is needed for a server to start; whatever fails is
left to it.
"""

import copy
import gc
import importlib
import os
import traceback
from collections import deque
from pathlib import Path

_SERVE = ("tokenize.api_router", "lora.api_router", "profile.api_router", "elastic_ep.api_router", "instrumentator.metrics")
_OPENAI = ("chat_completion", "completion", "models", "responses")
_SCALE_OUT = ("derender.api_router", "factories", "render.api_router", "token_in_token_out.api_router")
MODULES = (
    "model_hosting_container_standards.sagemaker",
    "prometheus_fastapi_instrumentator",
    "pydantic.v1",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.renderers.hf",
    "vllm.tool_parsers.hermes_tool_parser",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.engine.async_llm",
    *(f"vllm.entrypoints.openai.{name}.api_router" for name in _OPENAI),
    *(f"vllm.entrypoints.scale_out.{name}" for name in _SCALE_OUT),
    *(f"vllm.entrypoints.serve.{name}" for name in _SERVE),
)
MOST_MODELS = 4
"""Each takes memory for as long as this process lives."""
SPARES = 2
"""Copies that a server makes at its start: one a worker of its renderer, and one."""
IDLE_S = 10.0
"""Not beside the start of the server that asked for it."""
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def import_more() -> None:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  another release has them elsewhere: a server imports what it needs
            traceback.print_exc(limit=1)


def register_kernels() -> None:
    """Once, for all servers. Modules that are imported later take what stands in the place of the kernels by then."""
    try:
        from vllm.platforms import current_platform

        current_platform.register_triton_kernel_overrides()
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda _cls: None)
    except Exception:  # noqa: BLE001  another release does it otherwise, and each server by itself
        traceback.print_exc()


class Tokenisers:
    def __init__(self) -> None:
        self._asked: deque[str] = deque()
        self._read: dict[str, list] = {}
        self._spares: dict[str, list] = {}

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def ask_for(self, argv: list[str]) -> None:
        """A server with these arguments was forked; the next one of its model shall have less to do."""
        folder = _model_of(argv)
        if folder and folder not in self._read and folder not in self._asked:
            self._asked.append(folder)

    def read_next(self) -> None:
        folder = self._asked.popleft()
        if len(self._read) >= MOST_MODELS or len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
            return
        signature = self._read[folder] = _signature(folder)
        try:
            self._spares[folder] = _read(folder)
        except Exception:  # noqa: BLE001  the boundary of what may go wrong with a model's files
            traceback.print_exc()
        if _signature(folder) != signature:
            self._read[folder] = []  # it was being written
        gc.collect()
        gc.freeze()

    def use(self, argv: list[str]) -> None:
        """In the child, before its server starts: forget what has changed since it was read."""
        folder = _model_of(argv)
        if folder is None or folder not in self._read:
            return
        import vllm.renderers.hf as renderer
        import vllm.tokenizers.hf as tokenizers
        import vllm.tokenizers.registry as registry

        if self._read[folder] != _signature(folder):
            registry.cached_get_tokenizer.cache_clear()
            registry.cached_resolve_tokenizer_args.cache_clear()
            renderer._PROCESSOR_CHAT_TEMPLATES.clear()
            return
        tokenizers.copy = _Copying(self._spares.get(folder, []))


class _Copying:
    """In the place of the module `copy` where vLLM makes its pool of tokenisers."""

    copy = staticmethod(copy.copy)

    def __init__(self, spares: list) -> None:
        self._spares = spares

    def deepcopy(self, value: object) -> object:
        spare = self._spares[-1] if self._spares else None
        is_its_copy = type(spare) is type(value) and spare.name_or_path == value.name_or_path and len(spare) == len(value)
        return self._spares.pop() if is_its_copy else copy.deepcopy(value)


def _read(folder: str) -> list:
    """As a server does that is started with no arguments about its tokeniser; returns copies of it."""
    import vllm.renderers.hf as renderer
    from vllm.tokenizers.registry import cached_get_tokenizer

    ways = {"runner_type": "generate", "tokenizer_mode": "auto", "revision": None, "trust_remote_code": False}
    tokeniser = cached_get_tokenizer(folder, **ways)
    renderer._try_get_processor_chat_template(tokeniser, revision=None, code_revision=None, trust_remote_code=False)
    return [copy.deepcopy(tokeniser) for _ in range(SPARES)]


def _model_of(argv: list[str]) -> str | None:
    return argv[argv.index("--model") + 1] if "--model" in argv[:-1] else None


def _signature(folder: str) -> list:
    """Changes when one of the files is written the usual ways."""
    found = []
    for name in FILES:
        path = Path(folder) / name
        stat = path.stat() if path.exists() else None
        found.append([name, stat.st_size, stat.st_mtime_ns] if stat else [name])
    return found
