"""Which of several worker processes this one is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Process `index` (from 0) of `processes` under one parent."""

    index: int = 0
    processes: int = 1
