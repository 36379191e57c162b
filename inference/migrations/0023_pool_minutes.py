import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("inference", "0022_certificate_revocations"),
    ]

    operations = [
        migrations.CreateModel(
            name='PoolMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_index=True, help_text='when the minute began')),
                ('figures', models.JSONField(default=dict, help_text='by name: [looks that knew it, their sum, the most]')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='minutes', to='inference.pool')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('pool', 'at'), name='one_row_per_pool_and_minute')],
            },
        ),
    ]
