from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0030_attempts_say_how_they_went"),
    ]

    operations = [
        migrations.AddField(
            "adjustment",
            "reference",
            models.CharField(blank=True, default="", help_text="of what it is made for, once", max_length=200),
            preserve_default=False,
        ),
        migrations.AddField(
            "creditnote",
            "reference",
            models.CharField(blank=True, default="", help_text="of what it is issued for, once", max_length=200),
            preserve_default=False,
        ),
        migrations.AddConstraint(
            "adjustment",
            models.UniqueConstraint(
                condition=~models.Q(reference=""), fields=("reference",), name="a_reference_adjusts_once"
            ),
        ),
        migrations.AddConstraint(
            "creditnote",
            models.UniqueConstraint(
                condition=~models.Q(reference=""), fields=("reference",), name="a_reference_takes_back_once"
            ),
        ),
    ]
