"""The law of the folder, as far as imports can show it."""

import ast
import sys
from pathlib import Path

import inference.sim.simulation

FOLDER = Path(inference.sim.simulation.__file__).parent
WALL_CLOCKS_AND_IO = {"asyncio", "time", "secrets", "os", "socket", "threading", "subprocess", "logging"}


def test_the_simulator_needs_the_policies_and_the_standard_library_and_knows_no_wall_clock() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                is_ours = name.startswith(("inference.policy", "inference.sim"))
                assert is_ours or (top in sys.stdlib_module_names and top not in WALL_CLOCKS_AND_IO), f"{path.name}: {name}"


def test_its_law_is_short() -> None:
    assert len((FOLDER / "README.md").read_text().splitlines()) <= 6
