from pathlib import Path

from tenants.services.key_format import new_key
from tests.leaks import leaks


def test_a_key_in_a_log_is_found_and_what_only_looks_like_one_is_not(tmp_path: Path) -> None:
    key = new_key().text
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "gateway.log").write_text(f"noise\nGET /v1/models?api_key={key} HTTP/1.1\n")
    (tmp_path / "other.log").write_text("hw_live_" + "a" * 12 + "_" + "b" * 43 + "_" + "c" * 6)
    (tmp_path / "home" / "demo_key").write_text(key)
    assert leaks(tmp_path) == ["home/gateway.log: 1, the first at byte 29"]
    (tmp_path / "home" / "gateway.log").unlink()  # the rings look here too
    assert leaks(tmp_path) == []
