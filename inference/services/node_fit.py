"""Which nodes can run a version: its engine environment says for which accelerator it is, an agent which its machine has."""

from inference.engines.environments import EngineKind, kind_of
from inference.models import ModelVersion, NodeHeartbeat, WeightCopy
from inference.weight_models import CopyState
from inference.weight_uris import is_fetched


def why_not(node: NodeHeartbeat, engine_environment: str) -> str:
    """Why no engine of that environment can be started there; empty if one can."""
    kind = kind_of(engine_environment)
    has = accelerator_of(node)
    if kind is not None and has and kind != has:
        return f"it has {has}, not {kind}"
    if node.environments is not None and engine_environment not in node.environments:
        return f"{engine_environment} is not installed there"
    return ""


def accelerator_of(node: NodeHeartbeat) -> str:
    """As its agent says; of one that says nothing (an older release) by the kind of its machine; empty: nobody knows."""
    if node.accelerator or not node.machine_kind:
        return node.accelerator
    return (EngineKind.CPU if node.machine_kind.split("-")[0] == "cpu" else EngineKind.CUDA).value


def holders(version: ModelVersion) -> set[str]:
    """Nodes with a whole copy of its weights; none where they need no copy (a folder that is served in place)."""
    if not is_fetched(version.weights_uri):
        return set()
    return set(WeightCopy.objects.filter(version=version, state=CopyState.STAGED).values_list("node", flat=True))
