from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0023_pool_minutes")]

    operations = [
        migrations.AddField(
            model_name="nodeheartbeat",
            name="accelerator",
            field=models.CharField(
                blank=True, default="", help_text="cpu or cuda: which engines run there; empty: not told", max_length=16
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="nodeheartbeat",
            name="environments",
            field=models.JSONField(blank=True, help_text="engine environments installed there; null: not told", null=True),
        ),
    ]
