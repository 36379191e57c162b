import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0024_node_engines")]

    operations = [
        migrations.CreateModel(
            name="RollingRestart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("by", models.CharField(max_length=200)),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "verdict",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=16,
                    ),
                ),
                (
                    "reason",
                    models.CharField(blank=True, help_text="what it waits for, or why it ended", max_length=1000),
                ),
                ("waiting", models.JSONField(default=list)),
                ("done", models.JSONField(default=list)),
                ("replica", models.CharField(blank=True, help_text="the one under way", max_length=32)),
                ("replaced_by", models.CharField(blank=True, help_text="who comes in its place", max_length=32)),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="restarts", to="inference.pool"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)), fields=("pool",), name="one_restart_of_a_pool_at_a_time"
                    )
                ],
            },
        ),
    ]
