"""Mails and the outbox in the Django admin: to look at, and to try again what was given up."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from headway.admin_pages import AuditedAdmin
from workers.models import BeatLease, Mail, OutboxEntry
from workers.services.outbox import try_again


@admin.register(Mail)
class MailAdmin(AuditedAdmin):
    list_display = ("created_at", "to", "subject", "sent_at")
    search_fields = ("to", "subject")
    fields = ("to", "subject", "text", "created_at", "sent_at")


@admin.register(OutboxEntry)
class OutboxEntryAdmin(AuditedAdmin):
    list_display = ("id", "kind", "created_at", "due_at", "attempts", "done_at", "given_up_at", "last_error")
    list_filter = ("kind",)
    actions = ("again",)

    @admin.action(description="Try again what was given up")
    def again(self, request: HttpRequest, queryset: QuerySet[OutboxEntry]) -> None:
        tried = sum(try_again(entry.id) for entry in queryset)
        self.message_user(request, f"{tried} are tried again")


@admin.register(BeatLease)
class BeatLeaseAdmin(AuditedAdmin):
    list_display = ("holder", "epoch", "renewals")
