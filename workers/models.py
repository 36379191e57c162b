"""Work that is to be done after a transaction, mails, and who beats."""

from django.db import models


class OutboxEntry(models.Model):
    """One thing to do, written in the transaction that decided it. Names what it is about, and holds no content itself."""

    kind = models.CharField(max_length=32)
    ids = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    due_at = models.DateTimeField(help_text="not before; while it is being done outside: when it may be tried again")
    told_at = models.DateTimeField(null=True, help_text="when the broker was told last, of this attempt")
    attempts = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)
    given_up_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=300, blank=True)

    class Meta:
        verbose_name_plural = "outbox entries"
        indexes = (
            models.Index(fields=("due_at",), condition=models.Q(done_at=None, given_up_at=None), name="outbox_entries_to_do"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Mail(models.Model):
    """A mail on its way. Without an SMTP server it stays here to be read by operators; with one, its text goes once sent."""

    to = models.EmailField(max_length=254)
    subject = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True, help_text="given to the SMTP server, or shown to operators")
    num_sent = models.PositiveSmallIntegerField(default=0)

    class Meta:
        indexes = (models.Index(fields=("-created_at",), name="mails_newest_first"),)

    def __str__(self) -> str:
        return f"{self.subject} to {self.to}"


class BeatLease(models.Model):
    """Who beats: one row, changed by `UPDATE ... WHERE` what was seen. No machine's clock is held against another's."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    holder = models.CharField(max_length=100, blank=True)
    epoch = models.PositiveBigIntegerField(default=0)
    renewals = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.holder} epoch {self.epoch}"
