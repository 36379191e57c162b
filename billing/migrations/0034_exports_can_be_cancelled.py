from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0033_re_ratings"),
    ]

    operations = [
        migrations.AlterField(
            "export",
            "state",
            models.CharField(
                choices=[
                    ("asked", "Asked"),
                    ("running", "Running"),
                    ("ready", "Ready"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                    ("expired", "Expired"),
                ],
                default="asked",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            "export",
            "ended_at",
            models.DateTimeField(help_text="when it was ready, failed or was cancelled", null=True),
        ),
    ]
