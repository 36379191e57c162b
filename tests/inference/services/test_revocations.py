"""Revoked where the authority's key is, refused everywhere: the database brings the list."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.utils import timezone

from headway.certificates import Certificates, serial_of
from headway.home import Home
from inference.fleet_models import CertificateRevocations
from inference.gateway import trust as gateway_trust
from inference.gateway.trust import ROUNDS, Trust
from inference.services.revocations import fetch_revocations, revoke_certificate
from tenants.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture
def certificates(tmp_path: Path, settings: Any) -> Certificates:
    settings.HOME = Home(tmp_path / "home")
    made = Certificates(settings.HOME.tls)
    made.ensure_gateway()
    made.ensure_node("n")
    return made


def elsewhere(certificates: Certificates, folder: Path) -> Certificates:
    """Another machine's: it has the authority's certificate, and not its key."""
    folder.mkdir()
    (folder / "ca.pem").write_bytes(certificates.authority.certificate.read_bytes())
    return Certificates(folder)


def revoke(certificates: Certificates, serial: int) -> int:
    return revoke_certificate(revocations=certificates.revocations, serial=serial, name="x", actor="test")


def serials(certificates: Certificates) -> frozenset[int]:
    found = certificates.revocations.current()
    return frozenset() if found is None else found.serials


def test_every_machine_fetches_the_newest_list_once(certificates: Certificates, tmp_path: Path) -> None:
    other = elsewhere(certificates, tmp_path / "other")
    assert not fetch_revocations(other.revocations)
    assert [revoke(certificates, 11), revoke(certificates, 12)] == [1, 2]
    assert fetch_revocations(other.revocations)
    assert serials(other) == serials(certificates) == {11, 12}
    assert not fetch_revocations(other.revocations)


def test_a_list_that_the_authority_has_not_signed_is_nobodys(certificates: Certificates, tmp_path: Path) -> None:
    other = elsewhere(certificates, tmp_path / "other")
    foreign = Certificates(tmp_path / "foreign")
    foreign.folder.mkdir()
    foreign.ensure_gateway()
    pem = foreign.revocations.sign({1}, number=5).decode()
    CertificateRevocations.objects.create(number=5, pem=pem, made_at=timezone.now(), made_by="x")
    assert not fetch_revocations(other.revocations)
    assert serials(other) == frozenset()
    assert revoke(certificates, 2) == 6, "and it keeps nobody from revoking"
    assert fetch_revocations(other.revocations)
    assert serials(other) == {2}


def test_what_a_database_of_yesterday_has_forgotten_is_revoked_still(certificates: Certificates, tmp_path: Path) -> None:
    revoke(certificates, 11)
    revoke(certificates, 12)
    CertificateRevocations.objects.all().delete()  # a backup was brought back
    assert revoke(certificates, 13) == 3
    other = elsewhere(certificates, tmp_path / "other")
    fetch_revocations(other.revocations)
    assert serials(other) == {11, 12, 13}


def run(*words: str) -> dict[str, Any]:
    out = StringIO()
    call_command("revoke_node_certificate", *words, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_the_command_revokes_a_nodes_and_makes_another_in_its_place(certificates: Certificates) -> None:
    before = serial_of(certificates.node("n"))
    found = run("n", "--reason", "stolen")
    assert before is not None and int(found["serial"], 16) == before
    assert serials(certificates) == {before}
    assert serial_of(certificates.node("n")) != before
    entry = AuditEntry.objects.get(action="certificate.revoke")
    assert entry.after is not None
    assert (entry.target, entry.after["reason"]) == ("n", "stolen")
    gateway = serial_of(certificates.gateway())
    run("--gateway", "--no-new")
    assert gateway in serials(certificates) and serial_of(certificates.gateway()) == gateway
    run("--serial", "0A:0b")
    assert 0x0A0B in serials(certificates)


@pytest.mark.parametrize("words", [[], ["n", "--gateway"], ["unknown"], ["n/.."]])
def test_what_names_no_certificate_is_refused(certificates: Certificates, words: list[str]) -> None:
    with pytest.raises(CommandError):
        run(*words)
    assert not CertificateRevocations.objects.exists()


def test_a_gateway_looks_now_and_then_and_goes_on_while_the_database_is_away(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = elsewhere(certificates, tmp_path / "other")
    trust = Trust(other.revocations)
    trust.look()
    revoke(certificates, 11)

    def away(_revocations: object) -> bool:
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(gateway_trust, "fetch_revocations", away)
        patch.setattr("inference.gateway.trust.connection.close", lambda: None)
        for _ in range(ROUNDS):
            trust.look()
    assert serials(other) == frozenset()
    for _ in range(ROUNDS):
        trust.look()
    assert serials(other) == {11}
