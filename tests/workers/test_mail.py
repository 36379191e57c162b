import smtplib
from collections.abc import Callable
from typing import Any

import pytest
from django.core import mail as django_mail
from django.core.mail import get_connection
from django.core.mail.backends.smtp import EmailBackend
from django.test import Client

from headway.errors import ConfigurationError
from headway.smtp import SmtpServer, smtp_server
from tenants.models import User
from tests.workers.broker import Broker
from workers.models import Mail, OutboxEntry
from workers.services import outbox
from workers.services.mail import KIND, mail_effect, queue_mail

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def carry_out_all() -> None:
    for entry in OutboxEntry.objects.filter(done_at=None):
        outbox.carry_out(entry.id, {KIND: mail_effect()})


def test_without_a_server_a_mail_is_shown_on_the_console_and_to_operators(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    queue_mail(to="ann@example.com", subject="Hello\nthere", text="the link")
    with caplog.at_level("INFO"), django_capture_on_commit_callbacks(execute=True):
        carry_out_all()
    assert "the link" in caplog.text
    found = Mail.objects.get()
    assert (found.subject, found.text, found.num_sent) == ("Hello there", "the link", 1)
    User.objects.create_superuser("operator", password="x")
    client = Client()
    client.login(username="operator", password="x")
    assert "the link" in client.get(f"/admin/workers/mail/{found.pk}/change/").content.decode()


def test_with_a_server_it_is_sent_once_and_its_text_goes(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SMTP = smtp_server("smtp://user:pw@mail.example:2525", name="X")
    sent: list[Any] = []
    monkeypatch.setattr(EmailBackend, "send_messages", lambda self, messages: sent.extend(messages))
    queue_mail(to="ann@example.com", subject="Hello", text="the link")
    carry_out_all()
    carry_out_all()
    assert [(message.to, message.body) for message in sent] == [(["ann@example.com"], "the link")]
    assert (Mail.objects.get().text, Mail.objects.get().num_sent) == ("", 1)


def test_a_server_that_refuses_is_asked_again(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SMTP = smtp_server("smtps://mail.example", name="X")

    def refuse(_self: Any, _messages: Any) -> int:
        raise smtplib.SMTPServerDisconnected("user pw")

    monkeypatch.setattr(EmailBackend, "send_messages", refuse)
    queue_mail(to="ann@example.com", subject="Hello", text="the link")
    carry_out_all()
    entry = OutboxEntry.objects.get()
    assert (entry.done_at, entry.last_error) == (None, "the SMTP server did not take the mail: SMTPServerDisconnected")
    assert Mail.objects.get().text == "the link"


def test_what_libraries_send_goes_the_same_way() -> None:
    backend = get_connection("workers.mail_backend.OutboxBackend")
    backend.send_messages([django_mail.EmailMessage("Verify", "code 1", None, ["a@example.com", "b@example.com"])])
    assert {each.to for each in Mail.objects.all()} == {"a@example.com", "b@example.com"}
    assert OutboxEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://u:p%40@h", SmtpServer("h", 587, "u", "p@", starts_tls=True, is_tls=False)),
        ("smtp://h:25?tls=none", SmtpServer("h", 25, "", "", starts_tls=False, is_tls=False)),
        ("smtps://h", SmtpServer("h", 465, "", "", starts_tls=False, is_tls=True)),
        ("", None),
    ],
)
def test_the_servers_url(url: str, server: SmtpServer | None) -> None:
    assert smtp_server(url, name="X") == server


@pytest.mark.parametrize("url", ["mail.example", "http://h", "smtp://", "smtp://h:0", "smtp://h:x", "smtp://h?tls=maybe"])
def test_a_wrong_url_names_its_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HEADWAY_SMTP_URL"):
        smtp_server(url, name="HEADWAY_SMTP_URL")
