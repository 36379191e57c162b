"""`hf:` through huggingface_hub itself, against a hub of our own."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import BadWeights
from inference.node.child import Cancelled, ChildFailed
from inference.node.weight_files import MANIFEST
from inference.node.weights import StagingTools, stage
from tests.inference.node.hub_server import Hub, hub

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 200_000,
    "tokenizer.json": b"{}",
    "tf_model.h5": b"another framework's",
}
URI = "hf:org/name@v1"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with hub(FILES) as state:
        yield state


@pytest.fixture
def tools(tmp_path: Path, served: Hub) -> StagingTools:
    return StagingTools(
        folder=tmp_path / "weights", python=Path(sys.executable), engine_environment={}, hub_endpoint=served.endpoint
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_repository_is_fetched_once_whole_and_without_other_frameworks_files(tools: StagingTools, served: Hub) -> None:
    staged = stage(URI, tools)
    assert staged.path == tools.folder / "hf-org-name-v1"
    assert names(staged.path) == ["config.json", MANIFEST, "model.safetensors", "tokenizer.json"]
    assert (staged.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    num_downloads = len(served.downloads)
    assert stage(URI, tools) == staged
    assert len(served.downloads) == num_downloads


def test_weights_that_changed_on_the_hub_are_refused(tools: StagingTools) -> None:
    with pytest.raises(BadWeights, match="changed since this version was registered"):
        stage(URI, replace(tools, expected_digest="0" * 64))
    assert [name for name in names(tools.folder) if not name.startswith(".")] == []


def test_a_download_that_breaks_off_leaves_nothing_and_can_be_tried_again(
    tools: StagingTools, served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _s: None, raising=False)
    served.cut_off = "model.safetensors"
    with pytest.raises(ChildFailed):
        stage(URI, tools)
    assert [name for name in names(tools.folder) if not name.startswith(".")] == []
    served.cut_off = ""
    assert (stage(URI, tools).path / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize("uri", ["hf:org/other@v1", "hf:org/name@v2"])
def test_what_the_hub_does_not_have_is_bad_weights(tools: StagingTools, uri: str) -> None:
    with pytest.raises(BadWeights, match="HTTP 404"):
        stage(uri, tools)


def test_a_repository_without_a_model_is_bad_weights(tools: StagingTools, served: Hub) -> None:
    served.files = {"README.md": b"#"}
    with pytest.raises(BadWeights, match=r"config\.json"):
        stage(URI, tools)


def test_a_hub_that_is_not_there_can_be_tried_again(tools: StagingTools) -> None:
    with pytest.raises(ChildFailed, match="could not be reached"):
        stage(URI, replace(tools, hub_endpoint="http://127.0.0.1:9"))


def test_a_download_nobody_wants_any_more_ends(tools: StagingTools) -> None:
    with pytest.raises(Cancelled):
        stage(URI, replace(tools, is_cancelled=lambda: True))
