"""Lists of revoked certificates, and TLS contexts that are made anew when files change."""

import ssl
from pathlib import Path

import pytest

from headway.certificates import Certificates, serial_of
from headway.errors import ConfigurationError
from headway.fresh_context import FreshContext
from headway.revocation import Revocations


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.ensure_gateway()
    made.ensure_node("n")
    return made


def test_a_list_is_kept_if_our_authority_signed_it_and_it_is_newer(certificates: Certificates, tmp_path: Path) -> None:
    ours, other = certificates.revocations, Certificates(tmp_path / "other")
    assert ours.current() is None
    other.folder.mkdir()
    other.ensure_gateway()
    second, third = ours.sign({5, 7}, number=2), ours.sign({5}, number=3)
    assert ours.accept(second)
    for refused in (other.revocations.sign({1}, number=9), b"nothing", ours.sign({1}, number=2), ours.sign({1}, number=1)):
        assert not ours.accept(refused)
    found = ours.current()
    assert found is not None and (found.number, sorted(found.serials)) == (2, [5, 7])
    assert ours.accept(third)
    (tmp_path / "ca.pem").write_bytes(other.authority.certificate.read_bytes())
    assert ours.current() is None, "another authority's list says nothing of this one's certificates"


def test_only_where_the_authoritys_key_is_anything_is_revoked(certificates: Certificates) -> None:
    certificates.authority.key.unlink()
    with pytest.raises(ConfigurationError, match="the authority's key is not here"):
        certificates.revocations.sign({1}, number=1)


def test_what_was_revoked_is_made_anew_and_the_rest_is_kept(certificates: Certificates) -> None:
    node, gateway = serial_of(certificates.node("n")), serial_of(certificates.gateway())
    assert node is not None
    certificates.revocations.accept(certificates.revocations.sign({node}, number=1))
    assert serial_of(certificates.ensure_node("n")) != node
    assert serial_of(certificates.ensure_gateway()) == gateway
    assert serial_of(certificates.node("unknown")) is None


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_context_is_made_anew_when_a_file_is_another_and_not_before(certificates: Certificates) -> None:
    clock = Clock()
    files = [certificates.authority.certificate, certificates.gateway().certificate, certificates.revocations.path]
    fresh = FreshContext(certificates.client_context, files, now_s=clock)
    first = fresh.get()
    clock.now_s += 60
    assert fresh.get() is first
    certificates.revocations.accept(certificates.revocations.sign({1}, number=1))
    assert fresh.get() is first, "it looks once a second"
    clock.now_s += 1
    second = fresh.get()
    assert second is not first
    assert second.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    assert not first.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def test_half_copied_files_change_nothing_and_whole_ones_do(certificates: Certificates, tmp_path: Path) -> None:
    clock, pair = Clock(), certificates.gateway()
    fresh = FreshContext(certificates.client_context, [pair.certificate, pair.key], now_s=clock)
    first = fresh.get()
    other = Certificates(tmp_path / "other")
    other.folder.mkdir()
    for name in ("ca.pem", "ca.key"):
        (other.folder / name).write_bytes((tmp_path / name).read_bytes())
    new = other.ensure_gateway()
    pair.certificate.write_bytes(new.certificate.read_bytes())  # its key is on the way
    clock.now_s += 1
    assert fresh.get() is first
    pair.key.write_bytes(new.key.read_bytes())
    clock.now_s += 1
    assert fresh.get() is not first


def test_without_files_there_is_no_context_and_later_there_is_one(tmp_path: Path) -> None:
    certificates, clock = Certificates(tmp_path), Clock()
    fresh = FreshContext(certificates.client_context, [certificates.gateway().certificate], now_s=clock)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"manage\.py node_certificate"):
            fresh.get()
    certificates.ensure_gateway()
    assert fresh.get() is fresh.get()


def test_a_list_may_be_empty(certificates: Certificates) -> None:
    assert certificates.revocations.accept(certificates.revocations.sign([], number=1))
    found = Revocations(certificates.folder).current()
    assert found is not None and not found.serials
    certificates.client_context()
