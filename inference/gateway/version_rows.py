"""Which versions of a model serve, as the feed tells it (`versions` in the row of a model)."""

from dataclasses import dataclass

import msgspec

from inference.policy.split import Versions


class VersionsRow(msgspec.Struct, frozen=True):
    stable: str
    candidate: str | None = None
    candidate_share_ppm: int = 0
    shadow_share_ppm: int = 0
    shadow_max_usd_micros_left: int = 0
    salt: str = ""
    pinned: list[str] = []


@dataclass(frozen=True, slots=True)
class Shadow:
    """How much of what the stable version answers is mirrored to the candidate."""

    share_ppm: int = 0
    max_usd_micros_left: int = 0
    """What all of it may still cost, when the row was written."""


NO_SHADOW = Shadow()


def versions_of(row: VersionsRow | None) -> Versions | None:
    if row is None:
        return None
    return Versions(
        stable=row.stable,
        candidate=row.candidate or "",
        candidate_share_ppm=row.candidate_share_ppm,
        salt=row.salt,
        pinned=frozenset(row.pinned),
    )


def shadow_of(row: VersionsRow | None) -> Shadow:
    if row is None or not row.candidate or row.shadow_share_ppm <= 0:
        return NO_SHADOW
    return Shadow(row.shadow_share_ppm, row.shadow_max_usd_micros_left)
