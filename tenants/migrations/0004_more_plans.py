from django.db import migrations

PLANS = {
    "prepaid": {
        "requests_per_minute": 600,
        "input_tokens_per_minute": 400_000,
        "output_tokens_per_minute": 100_000,
        "concurrent_requests": 64,
        "default_max_tokens": 4096,
    },
    "enterprise": {
        "weight": 4.0,
        "requests_per_minute": 6_000,
        "input_tokens_per_minute": 4_000_000,
        "output_tokens_per_minute": 1_000_000,
        "concurrent_requests": 512,
        "discount_percent": 20,
        "salt_per_key": True,
    },
}
SELF_SERVICE = ("free", "pay-as-you-go", "prepaid")


def make_plans(apps, _schema_editor):
    plans = apps.get_model("tenants", "Plan").objects
    for name, values in PLANS.items():
        plans.get_or_create(name=name, defaults=values)
    plans.filter(name__in=SELF_SERVICE).update(is_self_service=True)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0003_members_keys_webhooks'),
    ]

    operations = [
        migrations.RunPython(make_plans, migrations.RunPython.noop),
    ]
