"""Which version is stable: the one place that moves it."""

from inference.errors import RolloutMoved
from inference.models import ModelVersion, Pool
from inference.services.registry import publish_model


def make_stable(pool: Pool, version: ModelVersion) -> None:
    """Call it with the pool held. Raises RolloutMoved where somebody else moved it."""
    if not Pool.objects.filter(pk=pool.pk, version_id=pool.version_id).update(version=version):
        raise RolloutMoved(f"another version of {version.model} has become stable meanwhile")
    pool.version = version
    publish_model(pool)
