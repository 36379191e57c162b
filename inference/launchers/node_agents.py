"""The cell launcher over node agents: it changes rows, and each agent makes its machine match those that name it."""

from collections import Counter
from collections.abc import Collection, Sequence

from inference.errors import NoNodeHasRoom
from inference.launchers.cell import Held, Place
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.heartbeats import live_nodes
from inference.services.replicas import LIVE_STATES, advance, publish_replica

NOBODY = "no node agent is alive"


class NodeAgents:
    def place(self, *, environment: str, default_node: str = "", not_on: str = "") -> Place:
        """The live node with the fewest, zones evened out first."""
        alive = list(live_nodes())
        if not alive:
            if default_node:
                return Place(default_node, "")
            raise NoNodeHasRoom(NOBODY, param="replicas")
        load = wanted_by_node()
        fits = [node for node in alive if node.name != not_on and can_run(node, environment) and has_room(node, load)]
        if not fits:
            other = f" beside {not_on}" if not_on else ""
            raise NoNodeHasRoom(
                f"no node{other} has room for a further replica: all that are alive and can run {environment} are full or "
                "cordoned",
                param="replicas",
            )
        by_zone: Counter[str] = Counter()
        for node in alive:
            by_zone[node.zone] += load[node.name]
        best = min(fits, key=lambda node: (not is_made_for(node, environment), by_zone[node.zone], load[node.name], node.name))
        return Place(best.name, best.zone)

    def check_room(self, number: int, *, environment: str, default_node: str = "") -> None:
        alive = list(live_nodes()) if number > 0 else []
        room = room_on([node for node in alive if can_run(node, environment)])
        if number > 0 and not alive and not default_node:
            raise NoNodeHasRoom(NOBODY, param="replicas", too_many=number)
        if alive and room is not None and room < number:
            raise NoNodeHasRoom(
                f"no node has room for {'a further replica' if number == 1 else f'{number} further replicas'}: "
                f"those that are alive, can run {environment} and are not full or cordoned take {room} more",
                param="replicas",
                too_many=number - room,
            )

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


def is_made_for(node: NodeHeartbeat, environment: str) -> bool:
    """Whether the node is the kind of machine that the engine environment is for, as far as its name says."""
    is_cpu_machine = node.machine_kind.partition("-")[0] == "cpu"
    return not node.machine_kind or is_cpu_machine == _is_for_cpus(environment)


def can_run(node: NodeHeartbeat, environment: str) -> bool:
    """A machine with GPUs has a CPU, too."""
    return _is_for_cpus(environment) or is_made_for(node, environment)


def _is_for_cpus(environment: str) -> bool:
    return "-cpu-" in f"-{environment}-"


def has_room(node: NodeHeartbeat, load: Counter[str]) -> bool:
    return not node.is_cordoned and not (node.max_replicas and load[node.name] >= node.max_replicas)


def room_on(nodes: Sequence[NodeHeartbeat]) -> int | None:
    """How many more they take; None: no bound is known."""
    load, open_nodes = wanted_by_node(), [node for node in nodes if not node.is_cordoned]
    if any(not node.max_replicas for node in open_nodes):
        return None
    return sum(max(0, node.max_replicas - load[node.name]) for node in open_nodes)
