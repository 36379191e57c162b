import django.db.models.deletion
from django.db import migrations, models

import headway.picos_field


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0031_references_of_corrections"),
    ]

    operations = [
        migrations.CreateModel(
            name="GrantReturn",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("billing_month", models.CharField(help_text="YYYY-MM: whose statement shows it", max_length=7)),
                ("paid_month", models.CharField(help_text="YYYY-MM: whose usage the grant had paid", max_length=7)),
                ("amount_picos", headway.picos_field.PicosField()),
                (
                    "grant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="returns", to="billing.grant"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("grant", "billing_month", "paid_month"), name="one_return_per_grant_and_months"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(amount_picos__gt=0), name="a_return_gives_back_something"
                    ),
                ],
            },
        ),
    ]
