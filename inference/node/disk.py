"""The weights on this machine's disk: who may fetch now, what is evicted for it, what must stay.

Several agents may share one folder (two node names over one HEADWAY_HOME): what their engines run from is read from
their run files, and a folder goes only while nobody builds it.
"""

import contextlib
import fcntl
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from inference.errors import BadWeights, NoRoom
from inference.node.child import Cancelled
from inference.node.hub_weights import DOWNLOADS
from inference.node.weight_files import MANIFEST, bytes_below
from inference.node.weights import MakeRoom
from inference.policy.disk_budget import Disk, Held, TooFull, room_for
from inference.weight_uris import is_fetched, place_of

log = structlog.get_logger(__name__)
LOOK_S = 0.2


@dataclass(frozen=True)
class DiskSettings:
    budget_bytes: int = 0
    """HEADWAY_WEIGHTS_BUDGET_GB: how much of the disk staged weights may take; 0: no bound but the disk's."""
    keep_free_bytes: int = 2 * 10**9
    """HEADWAY_WEIGHTS_KEEP_FREE_GB: how much of the disk stays free, whatever the budget."""
    fetches_at_once: int = 2
    """HEADWAY_WEIGHTS_AT_ONCE: how many versions are fetched at once on a node."""


class WeightsDisk:
    """`folder` is HOME.weights, `nodes` HOME.node. Jobs use it from threads of their own."""

    def __init__(
        self,
        folder: Path,
        nodes: Path,
        settings: DiskSettings,
        *,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self.folder, self._nodes, self._settings, self._free_bytes = folder, nodes, settings, free_bytes
        self._lock = threading.RLock()  # held for moments: the agent's loop waits for it
        self._room = threading.Lock()
        self._turns = threading.Semaphore(settings.fetches_at_once)
        self._fetches: dict[Path, int] = {}  # target -> how large all of it will be; 0: not known yet
        self._needed: frozenset[Path] | None = None
        self._pins: dict[str, frozenset[Path]] = {}
        self._evicted: list[Path] = []

    def need(self, uris: list[str]) -> None:
        """Whose copies must stay. Until it is told, none goes."""
        places = set()
        for uri in uris:
            with contextlib.suppress(BadWeights):
                places.add(place_of(uri, self.folder))
        with self._lock:
            self._needed = frozenset(places)

    def pin(self, who: str, uris: list[str]) -> None:
        """They are about to be used; they stay until `keep_pins` leaves `who` out."""
        with self._lock:
            self._pins[who] = frozenset(place_of(uri, self.folder) for uri in uris)
            for place in self._pins[who]:
                self._note_use(place)

    def keep_pins(self, who: set[str]) -> None:
        with self._lock:
            for name in self._pins.keys() - who:
                for place in self._pins.pop(name):
                    self._note_use(place)

    def is_evicted(self, place: Path) -> bool:
        """It went, and nobody was told yet."""
        with self._lock:
            return place in self._evicted

    def take_evicted(self) -> list[Path]:
        """What went since it was last asked."""
        with self._lock:
            evicted, self._evicted = self._evicted, []
        return evicted

    @contextlib.contextmanager
    def fetching(self, target: Path, *, is_cancelled: Callable[[], bool], say: Callable[[str], None]) -> Iterator[MakeRoom]:
        """One's turn; yields what makes room. Raises Cancelled; what is yielded raises NoRoom."""
        while not self._turns.acquire(timeout=LOOK_S):
            say(f"waiting for its turn: {self._settings.fetches_at_once} are fetched at once")
            if is_cancelled():
                raise Cancelled
        try:
            with self._lock:
                self._fetches[target] = 0
            yield lambda num_bytes: self._make_room(target, num_bytes)
        finally:
            with self._lock:
                self._fetches.pop(target, None)
            self._turns.release()

    def _make_room(self, target: Path, need_bytes: int) -> None:
        """Files are removed outside the lock of the agent's loop: those of large weights take seconds."""
        with self._room:
            try:
                with self._lock:
                    self._choose(target, need_bytes)
            finally:
                self.clear_leftovers()

    def _choose(self, target: Path, need_bytes: int) -> None:
        found = room_for(need_bytes, self._disk(target), self.held())
        if isinstance(found, TooFull) and target.exists():
            # Nobody fetches what is whole: that is a damaged copy, and what comes takes its place anyway.
            size_bytes = bytes_below(target)
            before = self._disk(target)
            without = replace(before, used_bytes=before.used_bytes - size_bytes, free_bytes=before.free_bytes + size_bytes)
            found = room_for(need_bytes, without, self.held())
            if not isinstance(found, TooFull):
                log.warning("damaged_weights_removed", name=target.name, reason="there is no room for another copy beside it")
                self._set_aside(target)
        if isinstance(found, TooFull):
            raise NoRoom(found.reason)
        for name in found.evict:
            if not self._evict(self.folder / name):
                raise NoRoom(f"{name} was to go for it, and another agent builds it just now")
        self._fetches[target] = self._written_bytes(target) + need_bytes

    def _disk(self, target: Path) -> Disk:
        others = {other: size for other, size in self._fetches.items() if other != target}
        return Disk(
            used_bytes=bytes_below(self.folder),
            promised_bytes=sum(max(0, size - self._written_bytes(other)) for other, size in others.items()),
            free_bytes=self._free_bytes(self.folder),
            budget_bytes=self._settings.budget_bytes,
            keep_free_bytes=self._settings.keep_free_bytes,
        )

    def held(self) -> list[Held]:
        """The copies there are, parts of ones that were cut off among them; folders that somebody put here are none."""
        in_use = self._in_use()
        return [
            Held(
                name=str(folder.relative_to(self.folder)),
                size_bytes=bytes_below(folder),
                last_used_s=last_used_s,
                is_needed=self._needed is None or target in self._needed,
                is_in_use=target in self._fetches or in_use(target),
            )
            for folder, target, last_used_s in [*self._copies(), *self._parts()]
        ]

    def _copies(self) -> Iterator[tuple[Path, Path, float]]:
        for manifest in self.folder.glob(f"*/{MANIFEST}"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # nothing of ours
                if is_fetched(json.loads(manifest.read_text())["source"]):
                    yield manifest.parent, manifest.parent, self._last_used_s(manifest)

    def _parts(self) -> Iterator[tuple[Path, Path, float]]:
        for part in self.folder.glob(f"{DOWNLOADS}/*@*"):
            with contextlib.suppress(OSError):
                yield part, self.folder / part.name.rpartition("@")[0], part.stat().st_mtime

    def _last_used_s(self, manifest: Path) -> float:
        used = _used_file(manifest.parent)
        return (used if used.exists() else manifest).stat().st_mtime

    def _note_use(self, place: Path) -> None:
        if (place / MANIFEST).exists() and place.parent == self.folder:
            _used_file(place).touch()

    def _in_use(self) -> Callable[[Path], bool]:
        words = [word for run in self._nodes.glob("*/run/*.json") for word in _arguments_of(run)]
        pinned = frozenset[Path]().union(*self._pins.values())
        return lambda target: target in pinned or any(str(target) in word for word in words)

    def _written_bytes(self, target: Path) -> int:
        """Of what is being fetched."""
        under_way = [*self.folder.glob(f".partial-{target.name}-*"), *self.folder.glob(f"{DOWNLOADS}/{target.name}@*")]
        return sum(bytes_below(path) for path in under_way)

    def _evict(self, folder: Path) -> bool:
        """False: somebody builds it."""
        with (self.folder / f".{folder.name.rpartition('@')[0] or folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._set_aside(folder)
        _used_file(folder).unlink(missing_ok=True)
        self._evicted.append(folder)
        log.info("weights_evicted", name=folder.name)
        return True

    def _set_aside(self, folder: Path) -> None:
        folder.rename(self.folder / f".evicted-{time.time_ns()}")  # whole, or not there

    def clear_leftovers(self) -> None:
        """What was set aside, also by an agent that was killed meanwhile."""
        for gone in self.folder.glob(".evicted-*"):
            shutil.rmtree(gone, ignore_errors=True)


def _used_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.used"


def _arguments_of(run: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [str(word) for word in json.loads(run.read_text())["arguments"]]
    return []
