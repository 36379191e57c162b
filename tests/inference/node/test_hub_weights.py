"""`hf:` through huggingface_hub itself, against a hub of our own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import BadWeights
from inference.node.child import Cancelled, ChildFailed
from inference.node.hub_download import RETRIES
from inference.node.weight_files import MANIFEST, bytes_below
from inference.node.weights import StagingTools, stage
from tests.inference.node.hub_server import COMMIT, Hub, hub

WEIGHTS = bytes(range(250)) * 800
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
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


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.node.hub_download.RETRY_S", 0.0)


def from_where(served: Hub, first: int = 0) -> list[int]:
    """From which byte on the weights were asked for, each time."""
    return [start for name, start in served.ranges[first:] if name == "model.safetensors"]


def staged_names(tools: StagingTools) -> list[str]:
    return [name for name in names(tools.folder) if not name.startswith(".")]


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
    assert staged_names(tools) == []


def test_a_cut_download_is_gone_on_with_in_the_same_staging(tools: StagingTools, served: Hub) -> None:
    served.cut_after["model.safetensors"] = [70_000]
    staged = stage(URI, tools)
    assert (staged.path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served) == [0, 70_000]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large is 150 kB in place of 50 GB, and a piece 60 kB."""
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 150_000)
    monkeypatch.setattr("inference.node.hub_download.PIECE_BYTES", 60_000)


@pytest.mark.usefixtures("large")
def test_a_file_larger_than_one_answer_comes_in_pieces_and_goes_on_where_it_was_cut(tools: StagingTools, served: Hub) -> None:
    served.most_bytes = 60_000
    served.cut_after["model.safetensors"] = [60_000, 10_000] + [0] * RETRIES
    with pytest.raises(ChildFailed):
        stage(URI, tools)
    before = len(served.ranges)
    staged = stage(URI, tools)
    assert (staged.path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served)[:3] == [0, 60_000, 70_000]
    assert from_where(served, before) == [70_000, 130_000, 190_000]


@pytest.mark.usefixtures("large")
def test_a_large_file_that_is_given_in_no_piece_comes_by_the_hubs_own_protocol(
    tools: StagingTools, served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def by_xet(_repository: str, name: str, **_options: object) -> str:
        made = tmp_path / "rebuilt"
        made.write_bytes(FILES[name])
        return str(made)

    monkeypatch.setattr("inference.node.hub_download.hf_hub_download", by_xet)
    served.most_bytes = 1000
    staged = stage(URI, tools)
    assert (staged.path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served) == []


@pytest.mark.parametrize("cut_after", [0, 1, 99_999, len(WEIGHTS) - 1])
def test_what_came_before_it_was_cut_is_not_fetched_again_by_a_later_staging(
    tools: StagingTools, served: Hub, cut_after: int
) -> None:
    served.cut_after["model.safetensors"] = [cut_after] + [0] * RETRIES
    with pytest.raises(ChildFailed):
        stage(URI, tools)
    assert staged_names(tools) == [], "no part of it is taken for a version"
    served.cut_after.clear()
    first = len(served.ranges)
    staged = stage(URI, tools)
    assert (staged.path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served, first) == [cut_after]
    assert [name for name, _ in served.ranges[first:]] == ["model.safetensors"], "the other files are there already"
    assert list((tools.folder / ".downloads").iterdir()) == []


def test_kill_9_in_a_download_leaves_parts_that_the_next_one_goes_on_with(tools: StagingTools, served: Hub) -> None:
    """As the file was when the process was killed: some of it there, in no order with anything else."""
    kept = tools.folder / ".downloads" / f"hf-org-name-v1@{COMMIT}" / ".parts"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(WEIGHTS[:12_345])
    measured: list[tuple[int, int]] = []
    staged = stage(URI, replace(tools, measured=lambda done, total: measured.append((done, total))))
    assert (staged.path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served) == [12_345]
    total = sum(len(FILES[name]) for name in ("config.json", "model.safetensors", "tokenizer.json"))
    assert (measured[0], measured[-1]) == ((12_345, total), (total, total))
    assert [done for done, _ in measured] == sorted(done for done, _ in measured)


@pytest.mark.parametrize(
    "wrong",
    [WEIGHTS[:-1] + b"x", WEIGHTS[:150_000], WEIGHTS + b"more", b"<html>a captive portal</html>"],
    ids=["another byte", "too short", "too long", "another page"],
)
def test_what_is_not_what_the_hub_states_never_becomes_a_version(tools: StagingTools, served: Hub, wrong: bytes) -> None:
    served.sends["model.safetensors"] = wrong
    for _ in range(2):
        with pytest.raises(ChildFailed, match=r"model\.safetensors|HTTP 416"):
            stage(URI, tools)
        assert staged_names(tools) == []
    served.sends.clear()
    assert (stage(URI, tools).path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_with_other_bytes_in_front_is_thrown_away_and_fetched_anew(tools: StagingTools, served: Hub) -> None:
    kept = tools.folder / ".downloads" / f"hf-org-name-v1@{COMMIT}" / ".parts"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"\0" * 12_345)
    with pytest.raises(ChildFailed, match="came damaged from the hub"):
        stage(URI, tools)
    assert (stage(URI, tools).path / "model.safetensors").read_bytes() == WEIGHTS
    assert from_where(served) == [12_345, 0]


def test_a_small_file_is_held_against_its_git_id(tools: StagingTools, served: Hub) -> None:
    served.sends["tokenizer.json"] = b"[]"
    with pytest.raises(ChildFailed, match=r"tokenizer\.json came damaged from the hub \(git id"):
        stage(URI, tools)
    assert staged_names(tools) == []


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", ".parts/x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tools: StagingTools, served: Hub, name: str) -> None:
    served.files = {**FILES, name: b"x"}
    with pytest.raises(BadWeights, match="no name inside a repository"):
        stage(URI, tools)
    assert served.downloads == []


def test_parts_of_an_earlier_state_of_the_revision_are_removed(tools: StagingTools) -> None:
    old = tools.folder / ".downloads" / "hf-org-name-v1@0ld"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"old")
    stage(URI, tools)
    assert not old.exists()


def test_room_is_made_for_what_is_still_missing_before_anything_is_fetched(tools: StagingTools, served: Hub) -> None:
    asked: list[tuple[str, int, int]] = []

    @contextmanager
    def fetching(target: Path) -> Iterator[Callable[[int], None]]:
        yield lambda num_bytes: asked.append((target.name, num_bytes, len(served.downloads)))

    served.cut_after["model.safetensors"] = [70_000] + [0] * RETRIES
    with pytest.raises(ChildFailed):
        stage(URI, replace(tools, fetching=fetching))
    num_before, there = len(served.downloads), bytes_below(tools.folder / ".downloads")
    assert there >= 70_000, "the two small files come beside the large one, or not before it is cut"
    served.cut_after.clear()
    stage(URI, replace(tools, fetching=fetching))
    assert asked == [("hf-org-name-v1", 200_004, 0), ("hf-org-name-v1", 200_004 - there, num_before)]


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
