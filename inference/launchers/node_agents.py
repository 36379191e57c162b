"""The cell launcher over node agents: it changes rows, and each agent makes its machine match those that name it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from inference.errors import NoNodeHasRoom
from inference.launchers.cell import Held, Place
from inference.models import ModelVersion, NodeHeartbeat, Replica, ReplicaState
from inference.services.heartbeats import live_nodes
from inference.services.node_fit import holders, why_not
from inference.services.replicas import LIVE_STATES, publish_replica, take_down

NOBODY = "no node agent is alive"
NODES_NAMED = 8
"""In the words of a refusal."""


class NodeAgents:
    def place(self, *, version: ModelVersion, default_node: str = "", not_on: str = "", rather_on: str = "") -> Place:
        """Of the live nodes that can run it and have room: the zone with the fewest of this version, there one that holds its
        weights, then the zone and the node with the fewest of all."""
        alive = list(live_nodes())
        if not alive:
            if default_node:
                return Place(default_node, "")
            raise NoNodeHasRoom(NOBODY, param="replicas")
        load, held = wanted_by_node(), holders(version)
        others = [node for node in alive if node.name != not_on]
        problems = _problems(others, version, load)
        fits = [node for node in others if not problems[node.name]]
        if not fits:
            told = "; ".join(_told(problems)) or "it is the only one"
            other = f" beside {not_on}" if not_on else ""
            raise NoNodeHasRoom(f"no node{other} has room for a further replica of {version}: {told}", param="replicas")
        own, by_zone = _by_zone(alive, wanted_by_node(version)), _by_zone(alive, load)

        def rank(node: NodeHeartbeat) -> tuple[object, ...]:
            is_even = own[node.zone], node.name not in held, by_zone[node.zone], load[node.name]
            return node.name != rather_on, *is_even, node.name

        best = min(fits, key=rank)
        return Place(best.name, best.zone)

    def check_room(self, number: int, *, version: ModelVersion, default_node: str = "") -> None:
        alive = list(live_nodes()) if number > 0 else []
        if number > 0 and not alive and not default_node:
            raise NoNodeHasRoom(NOBODY, param="replicas", too_many=number)
        load = wanted_by_node()
        problems = _problems(alive, version, load)
        room = room_on([node for node in alive if not problems[node.name]])
        if alive and room is not None and room < number:
            rooms = {node.name: problems[node.name] or f"room for {node.max_replicas - load[node.name]}" for node in alive}
            told = "; ".join(_told(rooms))
            wanted = "a further replica" if number == 1 else f"{number} further replicas"
            raise NoNodeHasRoom(f"no node has room for {wanted} of {version}: {told}", param="replicas", too_many=number - room)

    def start(self, replica: Replica) -> None:
        replica.save(force_insert=True)
        publish_replica(replica)

    def drain(self, replicas: Collection[Replica]) -> None:
        Replica.objects.filter(pk__in=[replica.pk for replica in replicas]).update(is_wanted=False)

    def stop(self, replica: Replica, *, reason: str) -> None:
        """Its agent kills the engine when it sees the state."""
        if replica.state not in (ReplicaState.FAILED, ReplicaState.STOPPED):
            take_down(replica_id=replica.id, expected=ReplicaState(replica.state), reason=reason)

    def list(self) -> list[Held]:
        rows = Replica.objects.exclude(node="").exclude(state=ReplicaState.STOPPED).order_by("created_at", "id")
        return [Held(row.id, row.node, row.zone, ReplicaState(row.state), row.is_wanted) for row in rows]


def _problem(node: NodeHeartbeat, version: ModelVersion, load: Counter[str]) -> str:
    """Why it does not go there; empty if it can."""
    if node.is_cordoned:
        return "cordoned"
    return why_not(node, version.engine_environment) or ("" if has_room(node, load) else "full")


def _problems(nodes: Sequence[NodeHeartbeat], version: ModelVersion, load: Counter[str]) -> dict[str, str]:
    return {node.name: _problem(node, version, load) for node in nodes}


def _told(problems: Mapping[str, str]) -> list[str]:
    return [f"{name}: {why}" for name, why in sorted(problems.items()) if why][:NODES_NAMED]


def _by_zone(nodes: Sequence[NodeHeartbeat], by_node: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in nodes:
        found[node.zone] += by_node[node.name]
    return found


def wanted_by_node(version: ModelVersion | None = None) -> Counter[str]:
    """How many wanted replicas each node has; with a version, of that one."""
    rows = Replica.objects.filter(is_wanted=True, state__in=LIVE_STATES).exclude(node="")
    if version is not None:
        rows = rows.filter(version=version)
    return Counter(rows.values_list("node", flat=True))


def has_room(node: NodeHeartbeat, load: Counter[str]) -> bool:
    return not node.is_cordoned and not (node.max_replicas and load[node.name] >= node.max_replicas)


def room_on(nodes: Sequence[NodeHeartbeat]) -> int | None:
    """How many more they take; None: no bound is known."""
    load, open_nodes = wanted_by_node(), [node for node in nodes if not node.is_cordoned]
    if any(not node.max_replicas for node in open_nodes):
        return None
    return sum(max(0, node.max_replicas - load[node.name]) for node in open_nodes)
