"""Mails, through the outbox. Without an SMTP server they are shown to operators: on the console and on the admin's page."""

import smtplib
from typing import Any

import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from headway.smtp import SmtpServer
from workers.errors import TryLater
from workers.models import Mail
from workers.services import outbox

log = structlog.get_logger(__name__)

KIND = "mail"
SMTP_TIMEOUT_S = 20


def queue_mail(*, to: str, subject: str, text: str) -> Mail:
    """Sent if and only if the transaction around commits."""
    with transaction.atomic():
        mail = Mail.objects.create(to=to, subject=" ".join(subject.split())[:200], text=text)
        outbox.put(kind=KIND, ids={"mail": mail.id})
    return mail


def mail_effect() -> outbox.Effect:
    if settings.SMTP is None:
        return outbox.Effect(act=show_to_operators)
    return outbox.Effect(act=send_by_smtp, is_in_database=False, lease_s=3 * SMTP_TIMEOUT_S)


def show_to_operators(ids: dict[str, Any]) -> None:
    """It is in the table already; the console is told."""
    mail = Mail.objects.filter(id=ids["mail"]).first()
    if mail is None:
        return
    Mail.objects.filter(id=mail.id).update(sent_at=timezone.now(), num_sent=F("num_sent") + 1)
    transaction.on_commit(lambda: log.info("mail_shown", mail=mail.id, to=mail.to, subject=mail.subject, text=mail.text))


def send_by_smtp(ids: dict[str, Any]) -> None:
    """Raises TryLater. Its text goes when it is sent: it may hold a link that lets somebody in."""
    mail = Mail.objects.filter(id=ids["mail"], sent_at=None).first()
    if mail is None:
        return
    message = EmailMessage(
        mail.subject,
        mail.text,
        settings.DEFAULT_FROM_EMAIL,
        [mail.to],
        headers={"Message-ID": f"<mail-{mail.id}-{mail.created_at.timestamp():.0f}@{settings.NODE_NAME}>"},
    )
    server = settings.SMTP
    assert server is not None, "this effect is chosen where there is a server"
    try:
        _backend(server).send_messages([message])
    except (OSError, smtplib.SMTPException) as error:
        raise TryLater(f"the SMTP server did not take the mail: {type(error).__name__}") from None
    Mail.objects.filter(id=mail.id).update(sent_at=timezone.now(), num_sent=F("num_sent") + 1, text="")


def _backend(server: SmtpServer) -> EmailBackend:
    return EmailBackend(
        host=server.host,
        port=server.port,
        username=server.username,
        password=server.password,
        use_tls=server.starts_tls,
        use_ssl=server.is_tls,
        timeout=SMTP_TIMEOUT_S,
    )
