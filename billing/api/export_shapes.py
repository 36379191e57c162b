"""What the API takes and gives of exports."""

from rest_framework import serializers as s

from billing.export_models import ExportKind, ExportState


class NewRequestsExport(s.Serializer):
    first = s.DateField()
    last = s.DateField(help_text="it is in the file; days are of the tenant's time zone")
    model = s.CharField(required=False, max_length=200, default="", allow_blank=True)
    key = s.CharField(required=False, max_length=16, default="", allow_blank=True, help_text="a key's id")


class NewLedgerExport(s.Serializer):
    month = s.CharField(max_length=7, help_text="YYYY-MM")


class ExportShape(s.Serializer):
    id = s.UUIDField()
    kind = s.ChoiceField(ExportKind.choices)
    name = s.CharField(help_text="of the file")
    state = s.ChoiceField(ExportState.choices)
    reason = s.CharField(help_text="why it failed")
    asked_by = s.CharField()
    rows_done = s.IntegerField()
    rows_total = s.IntegerField(allow_null=True, help_text="null: not counted yet")
    created_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    expires_at = s.DateTimeField(help_text="when its file is removed")
