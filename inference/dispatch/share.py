"""Several processes without a shared brain: each may fill its part of a replica's slots, and the parts add up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """The part of process `index` (from 0) of `processes`."""

    index: int = 0
    processes: int = 1

    def of(self, slots: int) -> int:
        """At least one, so that every process can serve every model: with fewer slots than processes it is too many."""
        more = 1 if self.index < slots % self.processes else 0
        return max(1, slots // self.processes + more)
