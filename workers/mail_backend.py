"""Django's e-mail backend: what libraries (log-in, password reset) send goes through the outbox like our own mails."""

from collections.abc import Sequence

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from workers.services.mail import queue_mail


class OutboxBackend(BaseEmailBackend):
    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        for message in email_messages:
            for to in message.recipients():
                queue_mail(to=to, subject=str(message.subject), text=str(message.body))
        return len(email_messages)
