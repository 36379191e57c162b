from django.db import migrations, models

OUTCOMES = [("ok", "Ok"), ("failed", "Failed"), ("neutral", "Neutral")]


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0023_usage_by_time"),
    ]

    operations = [
        migrations.AddField("attempt", "model", models.CharField(blank=True, default="", max_length=200), preserve_default=False),
        migrations.AddField("attempt", "version", models.CharField(blank=True, default="", max_length=64), preserve_default=False),
        migrations.AddField(
            "attempt",
            "outcome",
            models.CharField(blank=True, choices=OUTCOMES, default="", max_length=16),
            preserve_default=False,
        ),
        migrations.AddField(
            "attempt",
            "ttft_ms",
            models.PositiveIntegerField(help_text="since it was dispatched; null: there was no token", null=True),
        ),
        migrations.AddField(
            "attempt",
            "inter_token_ms",
            models.FloatField(help_text="mean; null: there were not two tokens", null=True),
        ),
        migrations.AddIndex(
            "attempt", models.Index(fields=["model", "version", "ended_at"], name="attempts_by_version")
        ),
    ]
