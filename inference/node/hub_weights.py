"""Weights from the Hugging Face hub: `hf:org/name@revision` (the revision may be left out: main).

The revision is resolved to a commit first, so that what is fetched is one state of the repository. HF_ENDPOINT and
HF_TOKEN are the library's own settings. Their digest is that of the folder (names and contents). What has come before a
download was cut off lies below `.downloads/` and is gone on with (hub_download.py).
"""

import errno
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2  # what huggingface_hub speaks
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # exported lazily

from inference.errors import BadWeights
from inference.node.child import ChildFailed
from inference.node.hub_download import PARTS, HubState, bytes_there, download, hub_files
from inference.node.weight_files import Staged, being_built, find_whole, folder_digest, write_manifest
from inference.weight_uris import HubSource, parse_hub_uri

if TYPE_CHECKING:
    from inference.node.weights import StagingTools

# Other frameworks' copies of the same weights.
IGNORED = ["*.msgpack", "*.h5", "*.onnx", "*.ot", "*.tflite", "onnx/*", "original/*", "*.pth", "flax_model*", "tf_model*"]
DOWNLOADS = ".downloads"


def stage_hub(uri: str, tools: "StagingTools") -> Staged:
    """Raises BadWeights, ChildFailed (the hub could not be reached, or sent something else), NoRoom, Cancelled."""
    source = parse_hub_uri(uri)
    target = tools.folder / source.folder_name
    with being_built(target) as partial:
        found = find_whole(target)
        if found is not None:
            return found
        _fetch(source, partial, tools)
        if not (partial / "config.json").exists():
            raise BadWeights(f"{source.repository} holds no config.json: it is no model vLLM can load")
        tools.progress("reading the weights")
        digest = folder_digest(partial, partial / ".digests")
        shutil.rmtree(partial / ".digests")
        tools.check_digest(digest)
        write_manifest(partial, source=uri, source_sha256=digest)
    return Staged(path=target, digest=digest)


def _fetch(source: HubSource, partial: Path, tools: "StagingTools") -> None:
    try:
        with tools.fetching(tools.folder / source.folder_name) as make_room:
            state = _state_of(source, tools)
            kept = _kept_folder(tools.folder / DOWNLOADS, source, state.commit)
            make_room(state.size_bytes - bytes_there(state, kept))
            download(state, kept, arrived=tools.arrived(state.size_bytes), is_cancelled=tools.is_cancelled)
    except HFValidationError as error:
        raise BadWeights(f"{source.repository}: {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in {401, 403, 404}:
            raise BadWeights(f"the hub has no {source.repository}@{source.revision} for us (HTTP {status})") from None
        raise ChildFailed(f"the hub answered with HTTP {status}") from None
    except (httpx2.TransportError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ChildFailed("the disk is full") from None
        raise ChildFailed(f"the hub could not be reached: {type(error).__name__}") from None
    _take_over(kept, partial)


def _state_of(source: HubSource, tools: "StagingTools") -> HubState:
    info = HfApi(endpoint=tools.hub_endpoint).model_info(source.repository, revision=source.revision, files_metadata=True)
    assert info.sha, "the hub names the commit of what it describes"
    wanted = filter_repo_objects(info.siblings or [], ignore_patterns=IGNORED, key=lambda sibling: sibling.rfilename)
    return HubState(repository=source.repository, commit=info.sha, endpoint=tools.hub_endpoint, files=hub_files(wanted))


def _kept_folder(downloads: Path, source: HubSource, commit: str) -> Path:
    """Where this state's files are gathered; what an earlier state of the revision left is removed."""
    kept = downloads / f"{source.folder_name}@{commit}"
    for other in downloads.glob(f"{source.folder_name}@*"):
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    return kept


def _take_over(kept: Path, partial: Path) -> None:
    shutil.rmtree(kept / PARTS, ignore_errors=True)
    for child in kept.iterdir():
        child.rename(partial / child.name)
    kept.rmdir()
