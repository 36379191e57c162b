"""Room for weights on a node's disk: which copies go, oldest use first, so that what is about to come fits.

What is needed (a wanted replica's, a stable version's, a candidate's) or in use by an engine never goes. Where that leaves
too little, nothing goes at all and the reason says what stands in the way.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """A copy on the disk. `last_used_s`: on any clock, the same for all."""

    name: str
    size_bytes: int
    last_used_s: float
    is_needed: bool = False
    is_in_use: bool = False


@dataclass(frozen=True)
class Disk:
    """`used_bytes`: of the weights' folder; `promised_bytes`: what others will still write; `budget_bytes` 0: no bound."""

    used_bytes: int
    promised_bytes: int
    free_bytes: int
    budget_bytes: int = 0
    keep_free_bytes: int = 0


@dataclass(frozen=True)
class Room:
    """There is room once these are gone."""

    evict: tuple[str, ...] = ()


@dataclass(frozen=True)
class TooFull:
    reason: str


def room_for(need_bytes: int, disk: Disk, held: Sequence[Held]) -> Room | TooFull:
    over_budget = disk.used_bytes + disk.promised_bytes + need_bytes - disk.budget_bytes if disk.budget_bytes else 0
    short = disk.keep_free_bytes + disk.promised_bytes + need_bytes - disk.free_bytes
    missing = max(over_budget, short)
    evict: list[str] = []
    for copy in sorted(held, key=lambda copy: (copy.last_used_s, copy.name)):
        if missing <= 0:
            break
        if not copy.is_needed and not copy.is_in_use and copy.size_bytes > 0:
            evict.append(copy.name)
            missing -= copy.size_bytes
    if missing > 0:
        return TooFull(_reason(need_bytes, disk, held, is_budget=over_budget >= short))
    return Room(tuple(evict))


def _reason(need_bytes: int, disk: Disk, held: Sequence[Held], *, is_budget: bool) -> str:
    kept = [copy for copy in held if copy.is_needed or copy.is_in_use]
    kept_gb = sum(copy.size_bytes for copy in kept) / 1e9
    stays = f"; {len(kept)} copies of {kept_gb:.1f} GB are needed and stay" if kept else ""
    promised = f", {disk.promised_bytes / 1e9:.1f} GB are promised to others" if disk.promised_bytes else ""
    if is_budget:
        has = f"{disk.used_bytes / 1e9:.1f} of {disk.budget_bytes / 1e9:.1f} GB of the weights' budget are used"
    else:
        has = f"the disk has {disk.free_bytes / 1e9:.1f} GB free, of which {disk.keep_free_bytes / 1e9:.1f} GB are to stay free"
    return f"no room for {need_bytes / 1e9:.1f} GB of weights: {has}{promised}{stays}"
