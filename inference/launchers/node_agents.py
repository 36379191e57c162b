"""The cell launcher over node agents: it changes rows, and each agent makes its machine match those that name it."""

from collections import Counter
from collections.abc import Collection, Sequence

from inference.errors import NoNodeHasRoom
from inference.launchers.cell import Held, Place
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.heartbeats import live_nodes
from inference.services.replicas import LIVE_STATES, advance, publish_replica


class NodeAgents:
    def place(self, *, default_node: str = "", not_on: str = "") -> Place:
        """The live node with the fewest, zones evened out first."""
        alive = list(live_nodes())
        if not alive:
            if default_node:
                return Place(default_node, "")
            raise NoNodeHasRoom("no node agent is alive", param="replicas")
        load = wanted_by_node()
        fits = [node for node in alive if node.name != not_on and has_room(node, load)]
        if not fits:
            other = f" beside {not_on}" if not_on else ""
            raise NoNodeHasRoom(
                f"no node{other} has room for a further replica: all that are alive are full or cordoned", param="replicas"
            )
        by_zone: Counter[str] = Counter()
        for node in alive:
            by_zone[node.zone] += load[node.name]
        best = min(fits, key=lambda node: (by_zone[node.zone], load[node.name], node.name))
        return Place(best.name, best.zone)

    def start(self, replica: Replica) -> None:
        replica.save(force_insert=True)
        publish_replica(replica)

    def drain(self, replicas: Collection[Replica]) -> None:
        Replica.objects.filter(pk__in=[replica.pk for replica in replicas]).update(is_wanted=False)

    def stop(self, replica: Replica, *, reason: str) -> None:
        """Its agent kills the engine when it sees the state."""
        if replica.state not in (ReplicaState.FAILED, ReplicaState.STOPPED):
            advance(replica_id=replica.id, expected=ReplicaState(replica.state), to=ReplicaState.FAILED, reason=reason)

    def list(self) -> list[Held]:
        rows = Replica.objects.exclude(node="").exclude(state=ReplicaState.STOPPED).order_by("created_at", "id")
        return [Held(row.id, row.node, row.zone, ReplicaState(row.state), row.is_wanted) for row in rows]


def wanted_by_node() -> Counter[str]:
    """How many wanted replicas each node has."""
    rows = Replica.objects.filter(is_wanted=True, state__in=LIVE_STATES).exclude(node="")
    return Counter(rows.values_list("node", flat=True))


def has_room(node: NodeHeartbeat, load: Counter[str]) -> bool:
    return not node.is_cordoned and not (node.max_replicas and load[node.name] >= node.max_replicas)


def room_on(nodes: Sequence[NodeHeartbeat]) -> int | None:
    """How many more they take; None: no bound is known."""
    load, open_nodes = wanted_by_node(), [node for node in nodes if not node.is_cordoned]
    if any(not node.max_replicas for node in open_nodes):
        return None
    return sum(max(0, node.max_replicas - load[node.name]) for node in open_nodes)
