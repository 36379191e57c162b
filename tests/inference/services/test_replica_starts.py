"""How long the parts of a replica's start took, from its agent's moves."""

from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from inference.models import Replica, ReplicaState
from inference.scaling_models import ReplicaStart
from inference.services.replica_starts import GUESSED_START_S, last_starts, usual_start_s
from inference.services.replicas import advance
from tests.inference.services.scaled_pool import have, pool, scaled_pool

pytestmark = pytest.mark.django_db
S = ReplicaState
WAY = (S.REQUESTED, S.STAGING, S.STARTING, S.CERTIFYING)


def go(replica_id: str, *states: ReplicaState) -> None:
    for before, after in pairwise(states):
        advance(replica_id=replica_id, expected=before, to=after)


def replica() -> str:
    scaled_pool()
    have(1)
    return Replica.objects.get().id


@pytest.mark.parametrize("end", [S.READY, S.WARM])
def test_a_start_is_broken_down(end: ReplicaState) -> None:
    name = replica()
    assert usual_start_s(pool()) == GUESSED_START_S
    go(name, *WAY, end)
    row = ReplicaStart.objects.get()
    moments = {"requested_at": 0.0, "staging_at": 0.5, "starting_at": 1.5, "certifying_at": 4.0, "up_at": 4.25}
    begin = timezone.now()
    ReplicaStart.objects.update(**{name: begin + timedelta(seconds=after_s) for name, after_s in moments.items()})
    (parts,) = last_starts(pool())
    assert (parts.place_s, parts.stage_s, parts.load_s, parts.certify_s, parts.total_s) == (0.5, 1.0, 2.5, 0.25, 4.25)
    assert (parts.version, parts.node, row.replica) == ("v1", "n1", name)
    assert usual_start_s(pool()) == 4.2


def test_a_start_that_failed_is_not_counted_and_the_next_one_is_another() -> None:
    name = replica()
    go(name, *WAY, S.FAILED, S.REQUESTED, S.STAGING)
    assert ReplicaStart.objects.count() == 1
    go(name, S.STAGING, S.STARTING, S.CERTIFYING, S.READY)
    assert ReplicaStart.objects.exclude(up_at=None).count() == 1


def test_putting_it_out_of_rotation_and_back_is_no_start() -> None:
    name = replica()
    go(name, *WAY, S.READY, S.DRAINING, S.WARM, S.READY)
    row = ReplicaStart.objects.get()
    up_at = row.up_at
    go(name, S.READY, S.CERTIFYING, S.READY)
    row.refresh_from_db()
    assert ReplicaStart.objects.count() == 1 and row.up_at == up_at
