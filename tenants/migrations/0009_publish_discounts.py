"""Gateways price by the plan's discount: tell them of those that hold already."""

from django.db import migrations, models

from inference.services.control import FEED_LOCK_ID


def publish_discounts(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("SELECT pg_advisory_xact_lock(%s)", [FEED_LOCK_ID])  # as control.publish does
    change = apps.get_model("inference", "ControlChange")
    plans = dict(apps.get_model("tenants", "Plan").objects.values_list("name", "discount_percent"))
    newest = change.objects.filter(kind="terms").values("key").annotate(newest=models.Max("id")).values("newest")
    rows = change.objects.filter(id__in=newest, payload__isnull=False).order_by("id").values_list("key", "payload")
    change.objects.bulk_create(
        change(kind="terms", key=key, payload={**payload, "discount_percent": percent})
        for key, payload in rows
        if payload and (percent := plans.get(payload.get("plan"), 0))
    )


class Migration(migrations.Migration):

    dependencies = [
        ("inference", "0004_lease_members"),
        ("tenants", "0008_names_whatever_their_case"),
    ]

    operations = [
        migrations.AlterField(
            model_name="plan",
            name="discount_percent",
            field=models.PositiveSmallIntegerField(default=0, help_text="off the list price of every token"),
        ),
        migrations.RunPython(publish_discounts, migrations.RunPython.noop),
    ]
