from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0013_balance_alerts"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="is_operator",
            field=models.BooleanField(default=False, help_text="our own account: it may ask for candidates by name"),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_operator", True)), fields=("is_operator",), name="one_operator_account"
            ),
        ),
    ]
