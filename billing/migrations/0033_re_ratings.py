from django.db import migrations, models

import headway.picos_field


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0032_what_corrections_gave_back"),
    ]

    operations = [
        migrations.CreateModel(
            name="ReRating",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", models.CharField(max_length=200)),
                ("price_version", models.PositiveIntegerField()),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField(help_text="the first instant that is not of it")),
                ("tenant_id", models.UUIDField(help_text="of one tenant only; null: of all", null=True)),
                ("reason", models.CharField(max_length=500)),
                ("reference", models.CharField(blank=True, help_text="of what it is made for, once", max_length=200)),
                ("actor", models.CharField(max_length=200)),
                ("requests", models.PositiveIntegerField(default=0, help_text="that were looked at")),
                ("adjusted", models.PositiveIntegerField(default=0)),
                ("amount_picos", headway.picos_field.PicosField(default=0, help_text="below zero: they cost less now")),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(help_text="null: it runs, or was cut off", null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=~models.Q(reference=""), fields=("reference",), name="a_reference_rates_again_once"
                    )
                ],
            },
        ),
    ]
