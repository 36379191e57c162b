"""Weights from the Hugging Face hub: `hf:org/name@revision` (the revision may be left out: main).

The revision is resolved to a commit first, so that what is fetched is one state of the repository. HF_ENDPOINT and
HF_TOKEN are the library's own settings. Their digest is that of the folder (names and contents).
"""

import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2  # what huggingface_hub speaks
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils.tqdm import tqdm

from inference.errors import BadWeights
from inference.node.child import Cancelled, ChildFailed
from inference.node.weight_files import Staged, being_built, files_below, find_whole, folder_digest, write_manifest

if TYPE_CHECKING:
    from inference.node.weights import StagingTools

# Other frameworks' copies of the same weights.
IGNORED = ["*.msgpack", "*.h5", "*.onnx", "*.ot", "*.tflite", "onnx/*", "original/*", "*.pth", "flax_model*", "tf_model*"]
WATCH_S = 1.0
_URI = re.compile(r"hf:(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class HubSource:
    repository: str
    revision: str


def parse_hub_uri(uri: str) -> HubSource:
    match = _URI.fullmatch(uri)
    if match is None:
        raise BadWeights("weights on the Hugging Face hub are named hf:ORG/NAME@REVISION")
    return HubSource(repository=match["repository"], revision=match["revision"] or "main")


def stage_hub(uri: str, tools: "StagingTools") -> Staged:
    """Raises BadWeights, ChildFailed (the hub could not be reached), Cancelled."""
    source = parse_hub_uri(uri)
    target = tools.folder / re.sub(r"[^A-Za-z0-9._-]", "-", f"hf-{source.repository}-{source.revision}")
    found = find_whole(target)
    if found is not None:
        return found
    with being_built(target) as partial:
        found = find_whole(target)
        if found is not None:
            return found
        _fetch(source, partial, tools)
        if not (partial / "config.json").exists():
            raise BadWeights(f"{source.repository} holds no config.json: it is no model vLLM can load")
        digest = folder_digest(partial, partial / ".digests")
        for name in (".cache", ".digests"):  # the library's notes and ours
            shutil.rmtree(partial / name, ignore_errors=True)
        tools.check_digest(digest)
        write_manifest(partial, source=uri, source_sha256=digest)
    return Staged(path=target, digest=digest)


def _fetch(source: HubSource, partial: Path, tools: "StagingTools") -> None:
    try:
        info = HfApi(endpoint=tools.hub_endpoint).model_info(source.repository, revision=source.revision, files_metadata=True)
        total_bytes = sum(sibling.size or 0 for sibling in info.siblings or [])
        with _Watch(partial, total_bytes, tools):
            snapshot_download(
                source.repository,
                revision=info.sha,
                local_dir=partial,
                endpoint=tools.hub_endpoint,
                ignore_patterns=IGNORED,
                tqdm_class=_cancellable(tools),
            )
    except HFValidationError as error:
        raise BadWeights(f"{source.repository}: {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in {401, 403, 404}:
            raise BadWeights(f"the hub has no {source.repository}@{source.revision} for us (HTTP {status})") from None
        raise ChildFailed(f"the hub answered with HTTP {status}") from None
    except (httpx2.TransportError, OSError) as error:
        raise ChildFailed(f"the hub could not be reached: {type(error).__name__}") from None


def _cancellable(tools: "StagingTools") -> type[Any]:
    class Bar(tqdm):  # silent; the one place where the library lets a download be ended
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = True
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            if tools.is_cancelled():
                raise Cancelled
            shown: bool | None = super().update(n)
            return shown

    return Bar


class _Watch:
    """Says once a second how much has arrived."""

    def __init__(self, folder: Path, total_bytes: int, tools: "StagingTools") -> None:
        self._folder, self._total_bytes, self._tools = folder, total_bytes, tools
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="staging-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(WATCH_S):
            so_far = [*files_below(self._folder), *self._folder.glob(".cache/**/*.incomplete")]
            arrived_mb = sum(path.stat().st_size for path in so_far if path.exists()) / 1e6
            self._tools.progress(f"downloading {arrived_mb:.0f} of {self._total_bytes / 1e6:.0f} MB")
