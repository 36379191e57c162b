"""Gateways refuse the keys of who is no member: tell them who is."""

from django.db import migrations

from inference.services.control import FEED_LOCK_ID


def publish_members(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("SELECT pg_advisory_xact_lock(%s)", [FEED_LOCK_ID])  # as control.publish does
    change = apps.get_model("inference", "ControlChange")
    members = apps.get_model("tenants", "Membership").unscoped.filter(user__is_active=True)
    change.objects.bulk_create(
        change(kind="member", key=f"{tenant_id}/{user_id}", payload={"role": role})
        for tenant_id, user_id, role in members.values_list("tenant_id", "user_id", "role")
    )


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0004_lease_members"),
        ("tenants", "0005_self_set_limits"),
    ]

    operations = [migrations.RunPython(publish_members, migrations.RunPython.noop)]
