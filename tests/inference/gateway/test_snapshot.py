from pathlib import Path

import pytest

from inference.gateway.snapshot import Anchor, Snapshot, load_snapshot, save_snapshot
from tests.inference.gateway.control_rows import model_row, replica_row

SNAPSHOT = Snapshot(anchor=Anchor(9, "replica", "r0"), rows=[model_row(1), replica_row(2)])


def test_what_was_saved_is_loaded_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "control"
    save_snapshot(path, SNAPSHOT)
    assert load_snapshot(path) == SNAPSHOT
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_none_is_no_error(tmp_path: Path) -> None:
    assert load_snapshot(tmp_path / "control") is None


@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign", "empty", "folder"])
def test_a_damaged_or_foreign_file_is_passed_over(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "control"
    save_snapshot(path, SNAPSHOT)
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "torn": data[:-7],
                "flipped": data[:40] + bytes([data[40] ^ 1]) + data[41:],
                "foreign": b"SQLite" * 9,
                "empty": b"",
            }[damage]
        )
    assert load_snapshot(path) is None
