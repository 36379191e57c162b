from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("inference", "0021_rollout_approvals"),
    ]

    operations = [
        migrations.CreateModel(
            name='CertificateRevocations',
            fields=[
                ('number', models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ('pem', models.TextField()),
                ('made_at', models.DateTimeField()),
                ('made_by', models.CharField(max_length=200)),
            ],
        ),
    ]
