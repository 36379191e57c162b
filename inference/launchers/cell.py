"""How a cell's replicas come to machines: placed, started, listed, drained, stopped.

`wanted.py`, `moving.py` and `lost_nodes.py` say which; a launcher says where and makes it happen. Ours tells node agents
(node_agents.py). One over a cluster manager would place by its own view of free machines, and start and stop by its API.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from inference.models import ModelVersion, Replica, ReplicaState


@dataclass(frozen=True)
class Place:
    """Where a replica runs; both empty for a launcher that decides when it starts."""

    node: str
    zone: str


@dataclass(frozen=True)
class Held:
    """A replica that the launcher looks after."""

    id: str
    node: str
    zone: str
    state: ReplicaState
    is_wanted: bool


class CellLauncher(Protocol):
    def place(self, *, version: ModelVersion, default_node: str = "", not_on: str = "", rather_on: str = "") -> Place:
        """Where one more of the version may go: not on the node `not_on`, on `rather_on` if that can take it; on
        `default_node` where no machine is known yet.

        Raises NoNodeHasRoom.
        """

    def check_room(self, number: int, *, version: ModelVersion, default_node: str = "") -> None:
        """Before any row is made: a thousand that do not fit must not be tried one by one. Raises NoNodeHasRoom."""

    def start(self, replica: Replica) -> None:
        """Have an engine for this new row, which names its place. Call it in the transaction that decides it."""

    def drain(self, replicas: Collection[Replica]) -> None:
        """Let them finish their requests, and end them."""

    def stop(self, replica: Replica, *, reason: str) -> None:
        """End it with whatever it does. It counts as failed until its last process is known to be gone."""

    def list(self) -> list[Held]:
        """All whose last process may still be there."""
