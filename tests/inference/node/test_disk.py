"""A node's disk: room is made for what comes, and nothing goes that somebody needs."""

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.errors import NoRoom
from inference.node.child import Cancelled
from inference.node.disk import DiskSettings, WeightsDisk
from inference.node.weight_files import MANIFEST, bytes_below, find_whole, write_manifest


class Place:
    """HOME.weights and HOME.node of a test, with a disk of the size it says."""

    def __init__(self, root: Path) -> None:
        self.weights, self.nodes = root / "weights", root / "node"
        for folder in (self.weights, self.nodes):
            folder.mkdir()
        self.free_bytes = 10**9

    def disk(self, **settings: int) -> WeightsDisk:
        known = DiskSettings(**{"keep_free_bytes": 0, **settings})
        return WeightsDisk(self.weights, self.nodes, known, free_bytes=lambda _path: self.free_bytes)

    def copy(self, name: str, *, size_bytes: int = 1000, used_s: int = 0, source: str = "hf:org/x@v1") -> Path:
        folder = self.weights / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"0" * size_bytes)
        write_manifest(folder, source=source, source_sha256="1")
        os.utime(folder / MANIFEST, (used_s, used_s))
        return folder

    def runs(self, node: str, weights: Path) -> None:
        """An engine of that node that was started with those weights."""
        folder = self.nodes / node / "run"
        folder.mkdir(parents=True)
        (folder / "rep-1.json").write_text(json.dumps({"arguments": ["--model", str(weights)]}))

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.weights.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def uri(name: str) -> str:
    """Of which `hf-org-<name>-v1` is the folder."""
    return f"hf:org/{name}@v1"


def make_room(disk: WeightsDisk, num_bytes: int, name: str = "hf-org-coming-v1") -> None:
    with disk.fetching(disk.folder / name, is_cancelled=lambda: False, say=lambda _line: None) as room:
        room(num_bytes)


def test_the_copy_used_longest_ago_goes_so_that_a_new_one_fits(place: Place) -> None:
    place.copy("hf-org-a-v1", used_s=3)
    place.copy("hf-org-b-v1", used_s=1)
    place.copy("hf-org-c-v1", used_s=2)
    disk = place.disk(budget_bytes=5500)
    disk.need([])
    make_room(disk, 2000)
    assert place.names == {"hf-org-a-v1", "hf-org-c-v1"}
    assert disk.take_evicted() == [place.weights / "hf-org-b-v1"]
    assert disk.take_evicted() == []
    assert not list(place.weights.glob(".evicted-*"))


def test_an_engine_that_was_started_later_counts_as_use(place: Place) -> None:
    for name in ("a", "b"):
        place.copy(f"hf-org-{name}-v1", used_s=1)
    disk = place.disk(budget_bytes=3200)
    disk.need([])
    disk.pin("rep-1", [uri("a")])
    disk.keep_pins(set())
    make_room(disk, 1000)
    assert place.names == {"hf-org-a-v1"}


def test_what_control_says_is_needed_stays_and_the_refusal_says_so(place: Place) -> None:
    place.copy("hf-org-a-v1")
    disk = place.disk(budget_bytes=2000)
    disk.need([uri("a")])
    with pytest.raises(NoRoom, match=r"1 copies of 0\.0 GB are needed and stay"):
        make_room(disk, 1000)
    assert place.names == {"hf-org-a-v1"}


def test_until_control_has_said_what_is_needed_nothing_goes(place: Place) -> None:
    """An agent that starts with the database away."""
    place.copy("hf-org-a-v1")
    disk = place.disk(budget_bytes=2000)
    with pytest.raises(NoRoom):
        make_room(disk, 1000)
    assert place.names == {"hf-org-a-v1"}


def test_what_an_engine_runs_from_stays_also_another_nodes_over_the_same_folder(place: Place) -> None:
    place.runs("another-node", place.copy("hf-org-a-v1"))
    place.copy("hf-org-b-v1", used_s=9)
    disk = place.disk(budget_bytes=3200)
    disk.need([])
    make_room(disk, 1000)
    assert place.names == {"hf-org-a-v1"}, "though it was used longer ago"


def test_what_a_replica_is_about_to_start_from_stays(place: Place) -> None:
    place.copy("hf-org-a-v1")
    disk = place.disk(budget_bytes=2000)
    disk.need([])
    disk.pin("rep-1", [uri("a")])
    with pytest.raises(NoRoom):
        make_room(disk, 1000)
    disk.keep_pins({"rep-1"})
    with pytest.raises(NoRoom):
        make_room(disk, 1000)
    disk.keep_pins(set())
    make_room(disk, 1000)
    assert place.names == set()


def test_folders_that_somebody_put_there_are_nobodys_to_evict(place: Place) -> None:
    place.copy("tiny", source="tiny:0:abc")
    (place.weights / "by-hand").mkdir()
    (place.weights / "by-hand" / "config.json").write_text("{}")
    disk = place.disk(budget_bytes=500)
    disk.need([])
    with pytest.raises(NoRoom):
        make_room(disk, 100)
    assert place.names == {"tiny", "by-hand"}


def test_a_copy_that_another_process_builds_just_now_is_left_alone(place: Place) -> None:
    place.copy("hf-org-a-v1")
    disk = place.disk(budget_bytes=2000)
    disk.need([])
    with (place.weights / ".hf-org-a-v1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NoRoom, match="another agent builds it"):
            make_room(disk, 1000)
    assert place.names == {"hf-org-a-v1"}
    make_room(disk, 1000)
    assert place.names == set()


def test_parts_of_a_download_that_nobody_wants_any_more_go_too(place: Place) -> None:
    parts = place.weights / ".downloads" / "hf-org-a-v1@abc"
    parts.mkdir(parents=True)
    (parts / "x").write_bytes(b"0" * 1000)
    disk = place.disk(budget_bytes=1500)
    disk.need([uri("a")])
    with pytest.raises(NoRoom):
        make_room(disk, 1000)
    disk.need([])
    make_room(disk, 1000)
    assert not parts.exists()


def test_a_full_disk_refuses_whatever_the_budget(place: Place) -> None:
    place.free_bytes = 1500
    disk = place.disk(budget_bytes=10**9, keep_free_bytes=1000)
    disk.need([])
    make_room(disk, 500)
    with pytest.raises(NoRoom, match="are to stay free"):
        make_room(disk, 501)


def test_two_at_once_are_not_promised_the_same_room(place: Place) -> None:
    disk = place.disk(budget_bytes=3000)
    disk.need([])
    with disk.fetching(place.weights / "hf-org-a-v1", is_cancelled=lambda: False, say=print) as room:
        room(2000)
        with pytest.raises(NoRoom, match="are promised to others"):
            make_room(disk, 2000)
        parts = place.weights / ".downloads" / "hf-org-a-v1@abc"
        parts.mkdir(parents=True)
        (parts / "x").write_bytes(b"0" * 1500)  # what it has written is used, and promised no more
        make_room(disk, 1000)
        with pytest.raises(NoRoom):
            make_room(disk, 1001)
    make_room(disk, 1500)


def test_so_many_fetch_at_once_and_the_others_wait_for_their_turn(place: Place) -> None:
    disk = place.disk(fetches_at_once=1)
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with disk.fetching(place.weights / "b", is_cancelled=lambda: False, say=said.append):
            order.append("second")

    thread = threading.Thread(target=second)
    with disk.fetching(place.weights / "a", is_cancelled=lambda: False, say=print):
        thread.start()
        until(lambda: bool(said))
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert said[0] == "waiting for its turn: 1 are fetched at once"


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within 30 s")


def test_a_turn_that_nobody_wants_any_more_is_given_up(place: Place) -> None:
    disk = place.disk(fetches_at_once=1)
    with (
        disk.fetching(place.weights / "a", is_cancelled=lambda: False, say=print),
        pytest.raises(Cancelled),
        disk.fetching(place.weights / "b", is_cancelled=lambda: True, say=print),
    ):
        raise AssertionError("it was not its turn")
    make_room(disk, 1)


def test_what_an_agent_killed_while_it_evicted_has_left_is_cleared(place: Place) -> None:
    place.copy("hf-org-a-v1").rename(place.weights / ".evicted-1")
    place.disk().clear_leftovers()
    assert list(place.weights.iterdir()) == []
    assert find_whole(place.weights / ".evicted-1") is None


def test_what_lies_below_a_folder_is_counted_while_others_take_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip removes the folder it downloads into while staging looks how far it is."""
    for name in ("a/one.whl", "b/two.whl", "b/three.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    assert (bytes_below(tmp_path), bytes_below(tmp_path, ".whl"), bytes_below(tmp_path / "none")) == (15, 10, 0)
    listed = os.scandir

    def late(folder: Any) -> Any:
        if str(folder).endswith("/b"):
            for name in ("two.whl", "three.txt"):
                (tmp_path / "b" / name).unlink()
            (tmp_path / "b").rmdir()
        return listed(folder)

    monkeypatch.setattr(os, "scandir", late)
    assert bytes_below(tmp_path) == 5


def test_a_damaged_copy_makes_room_for_what_takes_its_place_where_both_do_not_fit(place: Place) -> None:
    damaged = place.copy("hf-org-a-v1")
    os.truncate(damaged / "model.safetensors", 900)
    disk = place.disk(budget_bytes=1500)
    disk.need([uri("a")])
    with pytest.raises(NoRoom):
        make_room(disk, 2000, "hf-org-a-v1")
    assert place.names == {"hf-org-a-v1"}, "nothing goes for what does not fit either way"
    make_room(disk, 1000, "hf-org-a-v1")
    assert place.names == set()
    assert not list(place.weights.glob(".evicted-*"))


def test_a_damaged_copy_stays_where_there_is_room_for_both(place: Place) -> None:
    """Its source may be gone: somebody may be able to mend it."""
    os.truncate(place.copy("hf-org-a-v1") / "model.safetensors", 900)
    make_room(place.disk(budget_bytes=5000), 1000, "hf-org-a-v1")
    assert place.names == {"hf-org-a-v1"}


@pytest.mark.parametrize("content", [b"[]", b"null", b"\xff\xfe", b'{"source": 7}'])
def test_a_manifest_that_is_none_of_ours_keeps_no_other_copy_out(place: Place, content: bytes) -> None:
    (place.copy("hf-org-a-v1") / MANIFEST).write_bytes(content)
    make_room(place.disk(budget_bytes=5000), 1000)
    assert place.names == {"hf-org-a-v1"}


def test_the_agents_loop_waits_for_no_file_that_is_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.copy("hf-org-a-v1")
    disk, told = place.disk(budget_bytes=1500), list[list[Path]]()
    disk.need([])

    def removes_slowly(*_arguments: Any, **_more: Any) -> None:
        loop = threading.Thread(target=lambda: told.append(disk.take_evicted()))
        loop.start()
        loop.join(10)

    monkeypatch.setattr("inference.node.disk.shutil.rmtree", removes_slowly)
    make_room(disk, 1000)
    assert told == [[place.weights / "hf-org-a-v1"]]
