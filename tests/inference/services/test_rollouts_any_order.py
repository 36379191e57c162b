"""Operators, the sweep, engines that break and tenants that pin, in any order: the stable version serves throughout.

Acts are those of pages and commands that read the rollout a while ago: what its state does not allow is refused, and nothing
else happens.
"""

import random
from collections.abc import Callable

import pytest

from inference.errors import RolloutMoved, RolloutOpen
from inference.models import ModelVersion, Replica, ReplicaState
from inference.rollout_models import ENDED, Rollout, RolloutState
from inference.services.pools import set_pool
from inference.services.registry import scale
from inference.services.rollouts.fleet import wanted_beside
from inference.services.rollouts.operating import (
    abort_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
    roll_back_rollout,
    start_rollout,
)
from inference.services.rollouts.pins import pin_version, unpin_version
from tenants.models import Tenant
from tests.inference.services.rollout_cast import Cast
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db
NUMBERS = (1, 2, 3)
ACTS: tuple[Callable[..., None], ...] = (
    start_rollout,
    start_rollout,
    pause_rollout,
    resume_rollout,
    promote_rollout,
    roll_back_rollout,
    abort_rollout,
)
REFUSALS = (RolloutMoved, RolloutOpen)


class Shift:
    """One operators' shift."""

    def __init__(self, seed: int) -> None:
        self.rng, self.cast = random.Random(seed), Cast(versions=len(NUMBERS))
        self.tenant: Tenant = tenant_with("acme")
        self.read: list[Rollout] = []
        """As some page showed them, then."""
        often = (self.operate, self.look)
        self.turns = (*often, *often, self.draft, self.serve, self.breaks, self.mend, self.scale, self.pin)

    def turn(self) -> str:
        chosen = self.rng.choice(self.turns)
        try:
            chosen()
        except REFUSALS as refusal:
            return f"{chosen.__name__}: {refusal}"
        return chosen.__name__

    def stable(self) -> ModelVersion:
        version = self.cast.pool.version
        assert version is not None
        return version

    def draft(self) -> None:
        to = self.rng.choice([number for number in NUMBERS if number != self.stable().number])
        self.read.append(self.cast.draft(f"v{to}", window_s=self.rng.choice([0, 60, 3600])))

    def operate(self) -> None:
        if self.read:
            self.rng.choice(ACTS)(rollout=self.rng.choice(self.read[-2:]), actor="test")

    def look(self) -> None:
        self.cast.look(after_s=self.rng.choice([5, 5, 90]))

    def serve(self) -> None:
        for number in NUMBERS:
            if Replica.objects.filter(version__number=number).exists():
                self.cast.serve(f"v{number}", 200)

    def breaks(self) -> None:
        number = self.rng.choice([number for number in NUMBERS if number != self.stable().number])
        self.cast.broken[number] = "the engine ended with -9"
        self.cast.agent()

    def mend(self) -> None:
        self.cast.broken.clear()
        self.cast.agent()

    def scale(self) -> None:
        scale(public_id="m", replicas=self.rng.choice([1, 2, 3]), actor="test", node="here")
        set_pool(public_id="m", changes={"warm_replicas": self.rng.choice([0, 1])}, actor="test")
        self.cast.agent()

    def pin(self) -> None:
        if self.rng.random() < 0.5:
            unpin_version(tenant=self.tenant, public_id="m", actor="test")
        else:
            pin_version(tenant=self.tenant, public_id="m", label=f"v{self.rng.choice(NUMBERS)}", actor="test")

    def check(self) -> None:
        """After a look."""
        pool, told = self.cast.pool, self.cast.told()
        stable = self.stable()
        assert told["stable"] == f"v{stable.number}"
        open_ones = Rollout.objects.exclude(state__in=ENDED)
        assert len(open_ones) <= 1
        assert told["candidate"] in {None, *(f"v{each.to_version.number}" for each in open_ones)}
        if told["candidate"] is None:
            assert told["candidate_share_ppm"] == 0
        there = Replica.objects.filter(is_wanted=True).exclude(state=ReplicaState.STOPPED).values_list("version_id", flat=True)
        assert set(there) <= {stable.pk, *wanted_beside(pool, now=self.cast.now)}
        if stable.number not in self.cast.broken:
            assert "ready" in self.cast.states(stable.number), "nothing of the stable version serves"


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_the_stable_version_serves_and_nothing_that_nobody_wants(seed: int) -> None:
    shift, done = Shift(seed), []
    for _ in range(40):
        done.append(shift.turn())
        if done[-1] == "look":
            shift.check()
    shift.mend()
    for rollout in Rollout.objects.exclude(state__in=ENDED):
        if rollout.state != RolloutState.ROLLING_BACK:
            abort_rollout(rollout=rollout, actor="test")
    for _ in range(4):
        shift.cast.look()
    shift.check()
    assert not Rollout.objects.exclude(state__in=ENDED).exists(), done
