from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0019_stable_is_what_serves")]

    operations = [
        migrations.AddField(
            model_name="nodeheartbeat",
            name="agent",
            field=models.CharField(
                blank=True, default="", help_text="whose name it is: the id in the agent's HEADWAY_HOME", max_length=32
            ),
            preserve_default=False,
        ),
    ]
