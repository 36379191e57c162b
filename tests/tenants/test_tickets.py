"""Tickets: read back as written by whoever has the secret, and by nobody else."""

import pytest

from tenants.services.tickets import Ticket, is_nonce, new_nonce, read_ticket, write_ticket

TICKET = Ticket(tenant_id="t", member_id=7, nonce=new_nonce(), origin="https://site.example", expires_s=1_800_000_000.0)


def test_a_ticket_is_read_as_it_was_written() -> None:
    assert read_ticket(write_ticket(TICKET, secret="s"), secret="s") == TICKET


@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_a_ticket_with_one_character_changed_is_none(at: int) -> None:
    text = write_ticket(TICKET, secret="s")
    changed = "A" if text[at] != "A" else "B"
    assert read_ticket(text[:at] + changed + text[at:][1:], secret="s") is None


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.ü", "x" * 3000])
def test_what_is_no_ticket_is_none(text: str) -> None:
    assert read_ticket(text, secret="s") is None


def test_another_secret_or_none_reads_nothing() -> None:
    text = write_ticket(TICKET, secret="s")
    assert read_ticket(text, secret="another") is None
    assert read_ticket(write_ticket(TICKET, secret=""), secret="") is None


def test_nonces_differ_and_are_told_from_other_texts() -> None:
    assert is_nonce(new_nonce())
    assert new_nonce() != new_nonce()
    assert not any(is_nonce(text) for text in ("", "a" * 31, "g" * 32, "A" * 32))
