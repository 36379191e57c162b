"""Before rollouts, registering a version made it the pool's at once, while replicas of older ones went on serving.

Now the pool's version is the stable one, and replicas of any other are let go unless a rollout or a pin wants them. So an
installation that comes from there gets as stable what serves: the version with the most replicas, certified ones before
others that were ever started. What was registered beyond it waits for a rollout, as it would today.
"""

from collections import Counter

from django.db import migrations

CERTIFIED = ("ready", "warm")


def make_stable_what_serves(apps, schema_editor):
    pools = apps.get_model("inference", "Pool").objects.filter(version__isnull=False)
    rollouts, pins = apps.get_model("inference", "Rollout"), apps.get_model("inference", "VersionPin")
    replicas = apps.get_model("inference", "Replica").objects.filter(is_wanted=True, version__isnull=False).exclude(node="")
    for pool in pools:
        if any(table.objects.filter(model_id=pool.model_id).exists() for table in (rollouts, pins)):
            continue  # it has been run by these rules already
        certified, started = Counter(), Counter()
        for replica in replicas.filter(pool=pool).exclude(state="stopped"):
            certified[replica.version_id] += replica.state in CERTIFIED
            started[replica.version_id] += replica.epoch > 0
        found = {version for version in started if certified[version] or started[version]}
        stable = max(
            found,
            key=lambda version: (certified[version], started[version], version == pool.version_id, version),
            default=pool.version_id,
        )
        if stable != pool.version_id:
            pool.version_id = stable
            pool.save(update_fields=["version"])
            tell_gateways(apps, pool)


def tell_gateways(apps, pool):
    changes = apps.get_model("inference", "ControlChange").objects
    told = changes.filter(kind="model", key=pool.model.public_id).order_by("-id").first()
    if told is not None and told.payload is not None:
        version = apps.get_model("inference", "ModelVersion").objects.get(pk=pool.version_id)
        changes.create(kind="model", key=told.key, payload=told.payload | {"version": f"v{version.number}"})


class Migration(migrations.Migration):
    dependencies = [("inference", "0018_shadow_scores")]

    operations = [migrations.RunPython(make_stable_what_serves, migrations.RunPython.noop)]
