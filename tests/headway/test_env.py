from pathlib import Path

import pytest

from headway import env
from headway.errors import ConfigurationError

DEFAULT = Path("/srv/headway.sqlite3")


def test_a_number_that_is_none_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_X", "nine")
    with pytest.raises(ConfigurationError, match="HEADWAY_X must be a whole number, not 'nine'"):
        env.whole("HEADWAY_X", 1)
    with pytest.raises(ConfigurationError, match="HEADWAY_X"):
        env.seconds("HEADWAY_X", 1)
    with pytest.raises(ConfigurationError, match="HEADWAY_X"):
        env.truth("HEADWAY_X", False)


@pytest.mark.parametrize("value", ["0", "70000", "-1"])
def test_a_number_out_of_bounds_fails_loudly(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEADWAY_X", value)
    with pytest.raises(ConfigurationError, match="between 1 and 65535"):
        env.whole("HEADWAY_X", 1, at_least=1, at_most=65535)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_seconds_are_finite_and_not_negative(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEADWAY_X", value)
    with pytest.raises(ConfigurationError):
        env.seconds("HEADWAY_X", 1.0)


def test_an_empty_setting_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_X", "")
    assert env.whole("HEADWAY_X", 7) == 7
    assert env.text("HEADWAY_X", "a") == "a"
    assert env.names("HEADWAY_X", ["a", "b"]) == ["a", "b"]


def test_a_secret_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("hush\n")
    monkeypatch.setenv("HEADWAY_X_FILE", str(tmp_path / "s"))
    assert env.secret("HEADWAY_X", "") == "hush"
    monkeypatch.setenv("HEADWAY_X_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="HEADWAY_X_FILE"):
        env.secret("HEADWAY_X", "")


def test_no_database_url_means_sqlite_in_wal_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_DB", raising=False)
    database = env.database("HEADWAY_DB", DEFAULT)
    assert database["NAME"] == str(DEFAULT)
    assert "journal_mode=WAL" in str(database["OPTIONS"])


def test_a_postgresql_url_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_DB", "postgresql://u%40x:p%3Aw@db.example:5433/name")
    database = env.database("HEADWAY_DB", DEFAULT)
    found = {name: database[name] for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME")}
    assert found == {"USER": "u@x", "PASSWORD": "p:w", "HOST": "db.example", "PORT": "5433", "NAME": "name"}


@pytest.mark.parametrize("url", ["mysql://h/x", "postgresql://h", "nonsense"])
def test_another_database_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HEADWAY_DB", url)
    with pytest.raises(ConfigurationError, match="HEADWAY_DB must be postgresql"):
        env.database("HEADWAY_DB", DEFAULT)
