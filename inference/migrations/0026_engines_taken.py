from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0025_rolling_restarts")]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="engines_taken",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="of its engines: they went with their node or were stopped by hand, and did not fail",
            ),
        ),
        migrations.AddField(
            model_name="rollout",
            name="engines_taken",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="of both versions, when it was last looked at: what failed with them is not judged",
            ),
        ),
    ]
