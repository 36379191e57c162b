import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.home import MAX_RUN_PATH_BYTES, Home


def test_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for folder in (home.journal, home.snapshots, home.weights, home.node, home.logs, home.run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_secret_key_is_made_once_also_by_two_at_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: home.secret_key(), range(32)))
    assert len(keys) == 1
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert len(keys.pop()) > 40


def test_two_homes_are_two_installations(tmp_path: Path) -> None:
    assert Home(tmp_path / "a").installation_id != Home(tmp_path / "b").installation_id


def test_sockets_have_a_path_short_enough_however_deep_the_home_lies(tmp_path: Path) -> None:
    home = Home(tmp_path / ("deep" * 40))
    assert len(str(home.run)) <= MAX_RUN_PATH_BYTES
    assert home.run == Home(home.root).run
    home.run.rmdir()
