"""Staging as the real agent does it: the engine's parser is asked before anything is fetched."""

from pathlib import Path
from typing import Any

import pytest

from headway.home import Home
from inference.engines.environments import EngineEnvironment, EngineKind
from inference.errors import BadEngineArguments
from inference.node.composition import make_tools
from inference.node.control_link import in_place
from inference.node.jobs import Job
from inference.node.node_settings import NodeSettings
from inference.node.tools import Tools
from inference.node.weight_files import Staged
from tests.inference.node.fakes import FakeLauncher, desired


class AskedLauncher(FakeLauncher):
    def __init__(self) -> None:
        super().__init__()
        self.refused = ""
        self.num_asked = 0

    def refusal(self, environment: EngineEnvironment, process_environment: Any, arguments: Any) -> str:
        self.num_asked += 1
        return self.refused


class OneLauncher:
    def __init__(self, launcher: FakeLauncher) -> None:
        self._launcher = launcher

    def of(self, _kind: EngineKind) -> FakeLauncher:
        return self._launcher

    def own_sessions(self) -> set[int]:
        return set()


@pytest.fixture
def launcher() -> AskedLauncher:
    return AskedLauncher()


@pytest.fixture
def tools(tmp_path: Path, launcher: AskedLauncher, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """An environment whose python does nothing, so that no tokeniser is read either."""
    python = tmp_path / "engines" / "vllm-cpu-1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/false")
    monkeypatch.setenv("HEADWAY_ENGINES_DIR", str(tmp_path / "engines"))
    launchers: Any = OneLauncher(launcher)
    return make_tools(Home(tmp_path / "home"), "here", NodeSettings(), launchers, lambda _id, _s: True, call=in_place)


def stage(tools: Tools, weights: Path) -> Staged:
    return tools.stage(desired(weights_uri=str(weights), engine_args=["--max-model-len", "9"]), Job())


def test_what_the_parser_refuses_is_not_staged(tools: Tools, launcher: AskedLauncher, tmp_path: Path) -> None:
    launcher.refused = "unrecognized arguments: --no-such-flag"
    with pytest.raises(BadEngineArguments, match="vllm-cpu-1 refuses its arguments: unrecognized arguments"):
        stage(tools, tmp_path / "nowhere")
    assert not (tools.disk.folder / "folder-digests").exists()


def test_what_it_takes_is_staged_and_it_is_not_asked_again(tools: Tools, launcher: AskedLauncher, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    first = stage(tools, tmp_path / "m")
    assert (first.path, stage(tools, tmp_path / "m")) == (tmp_path / "m", first)
    assert launcher.num_asked == 1
