"""Certificates that somebody has copied wrongly, cut or left to expire."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509

from headway import certificates
from headway.certificates import LEAF_DAYS, Certificates
from headway.errors import ConfigurationError


def test_rubbish_in_place_of_a_nodes_certificate_is_replaced(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    pair = ours.ensure_node("n1")
    pair.certificate.write_text("rubbish")
    ours.ensure_node("n1")
    x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    ours.server_context("n1")


def test_one_that_is_about_to_expire_is_made_anew_and_another_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Certificates(tmp_path)
    before = ours.ensure_gateway().certificate.read_bytes()
    assert ours.ensure_gateway().certificate.read_bytes() == before
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=LEAF_DAYS - 1)
    monkeypatch.setattr(certificates, "_now", lambda: later)
    assert ours.ensure_gateway().certificate.read_bytes() != before


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_an_authority_that_cannot_be_read_is_said_and_nothing_is_signed(tmp_path: Path, which: str) -> None:
    ours = Certificates(tmp_path)
    ours.ensure_gateway()
    getattr(ours.authority, which).write_text("rubbish")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ours.ensure_node("n1")
    assert not ours.node("n1").certificate.exists()


def test_the_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    """It would make certificates that nobody takes."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    ours.ensure_gateway()
    theirs.ensure_gateway()
    ours.authority.key.write_bytes(theirs.authority.key.read_bytes())
    with pytest.raises(ConfigurationError, match="another authority's"):
        ours.ensure_node("n1")
