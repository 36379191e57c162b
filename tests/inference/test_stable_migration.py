"""An installation from before rollouts is brought up to date: what serves there goes on serving."""

from importlib import import_module

import pytest
from django.apps import apps

from inference.models import ControlChange, Pool, Replica, ReplicaState
from inference.rollout_models import VersionPin
from inference.services.rollouts.ticking import tick
from tests.inference.services.rollout_cast import Cast
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db
migration = import_module("inference.migrations.0019_stable_is_what_serves")


@pytest.fixture
def cast() -> Cast:
    """Its v2 was registered while two replicas of v1 served, and became the pool's at once."""
    made = Cast()
    Pool.objects.update(version=made.version(2))
    return made


def migrated(cast: Cast) -> str:
    migration.make_stable_what_serves(apps, None)
    return str(cast.pool.version)


def test_what_serves_is_stable_and_the_first_look_lets_nothing_go(cast: Cast) -> None:
    assert migrated(cast) == "m v1"
    told = ControlChange.objects.filter(kind="model", key="m").latest("id").payload
    assert told is not None and told["version"] == "v1"
    tick(cast.now)
    assert (cast.states(1), cast.states(2)) == (["ready", "ready"], [])


def test_of_two_that_serve_the_one_with_more_replicas_is_and_gets_those_of_the_other_as_well(cast: Cast) -> None:
    row = Replica.objects.first()
    assert row is not None
    for name in ("rep-other", "rep-third"):
        Replica.objects.create(id=name, pool=row.pool, version=cast.version(2), node="here", epoch=1, changed_at=cast.now)
    Replica.objects.filter(pk="rep-other").update(state=ReplicaState.READY)
    Pool.objects.update(desired_replicas=4)
    assert migrated(cast) == "m v1"
    cast.look()
    assert (len(cast.states(1)), cast.states(2)) == (4, [])


def test_with_everything_stopped_it_is_the_one_whose_engines_were_started(cast: Cast) -> None:
    Replica.objects.update(state=ReplicaState.FAILED, reason="stopped by make down")
    assert migrated(cast) == "m v1"


def test_where_nothing_else_serves_the_newest_stays(cast: Cast) -> None:
    Replica.objects.update(state=ReplicaState.STOPPED, is_wanted=False)
    assert migrated(cast) == "m v2"


def test_a_pool_that_rollouts_or_pins_have_touched_is_left_as_it_is(cast: Cast) -> None:
    VersionPin.objects.create(
        tenant_id=tenant_with("acme").id, model=cast.pool.model, version=cast.version(1), created_by="test"
    )
    assert migrated(cast) == "m v2"
