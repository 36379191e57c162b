from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("inference", "0020_node_agent"),
    ]

    operations = [
        migrations.AddField(
            model_name='rollout',
            name='approval_asked_at',
            field=models.DateTimeField(blank=True, help_text='operators were told that it waits for one of them', null=True),
        ),
        migrations.AddField(
            model_name='rollout',
            name='approved_by',
            field=models.CharField(blank=True, help_text='who, beside its maker, wants it promoted', max_length=200),
        ),
        migrations.AddField(
            model_name='rollout',
            name='approved_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='rollout',
            name='shadow_micros_left',
            field=models.PositiveBigIntegerField(default=0, help_text='of what mirrored requests may cost, not taken by a gateway yet'),
        ),
        migrations.AlterField(
            model_name='pool',
            name='max_queued',
            field=models.PositiveIntegerField(default=256, help_text='requests waiting in front of the pool, of all versions together'),
        ),
        migrations.AlterField(
            model_name='rolloutevent',
            name='kind',
            field=models.CharField(help_text='moved, step, share, breach, note, approval', max_length=16),
        ),
    ]
