"""Who may decide: never two at once, whatever the lock, the row and the database say."""

from pathlib import Path

import pytest
from django.db import OperationalError

from headway.clock import FakeClock
from inference.dispatch import leadership as module
from inference.dispatch.address import Address, parse_address
from inference.dispatch.brain_lock import BrainLock
from inference.dispatch.leadership import Leadership
from inference.services.lease import current_lease

pytestmark = pytest.mark.django_db

FAR = parse_address("tcp://far:9102")


class Machines:
    """Each has a folder and so a lock; all share the database. `look` is what a thread does four times a second."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.lost = folder, FakeClock(), set[str]()

    def one(self, machine: str, name: str, address: Address = FAR) -> Leadership:
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        made = Leadership(
            machine=machine,
            name=name,
            address=address,
            lock=BrainLock(home / "lock"),
            seen_path=home / "seen",
            clock=self.clock,
        )
        made.on_lost = lambda: self.lost.add(name)
        return made

    def look(self, *who: Leadership, for_s: float = 0.0) -> None:
        for _ in range(1 + round(for_s / 0.25)):
            for one in who:
                one._round()
            self.clock.advance(0.25)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def no_answer(*_: object, **__: object) -> None:
    raise OperationalError("away")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The database does not answer until `away.undo()`."""
    for name in ("current_lease", "take_lease", "renew_lease", "give_lease_back"):
        monkeypatch.setattr(module, name, no_answer)
    return monkeypatch


def test_the_lock_is_one_processes_and_comes_free_with_its_end(machines: Machines) -> None:
    a, b = machines.one("near", "a"), machines.one("near", "b")
    assert a.lock.take() and a.lock.take()
    assert not b.lock.take()
    a.lock.give_back()
    assert b.lock.take()


def test_who_has_the_lock_follows_another_of_its_machine_at_once_and_with_the_next_epoch(machines: Machines) -> None:
    a, b = machines.one("near", "a"), machines.one("near", "b")
    assert a.lock.take() and a.take() == 1
    a.lock.give_back()  # as the kernel does when it dies: the row still names it
    assert b.lock.take() and b.take() == 2
    lease = current_lease()
    assert lease is not None and (lease.holder, lease.epoch, lease.address) == ("near/b", 2, "tcp://far:9102")


def test_another_machine_waits_until_the_row_is_stale_and_its_holder_does_not_answer(machines: Machines) -> None:
    a, b = machines.one("near", "a"), machines.one("other", "b")
    assert a.lock.take() and a.take() == 1
    assert b.lock.take() and b.take() is None
    machines.look(a, b, for_s=5.0)
    assert b.take() is None, "it is renewed"
    machines.look(b, for_s=1.5)
    assert b.take(is_reachable=True) is None, "it lives, and cannot reach the database"
    assert b.take() == 2
    assert not machines.lost
    machines.look(a)
    assert machines.lost == {"a"} and a.epoch is None


def test_one_that_has_no_address_for_other_machines_is_followed_only_after_a_long_silence(machines: Machines) -> None:
    a, b = machines.one("near", "a", Address(path=Path("/run/d.sock"))), machines.one("other", "b")
    assert a.lock.take() and a.take() == 1
    assert b.lock.take() and b.take() is None
    machines.look(b, for_s=25.0)
    assert b.take() is None
    machines.look(b, for_s=6.0)
    assert b.take() == 2


def test_a_row_that_was_given_back_is_free_for_all(machines: Machines) -> None:
    a, b = machines.one("near", "a"), machines.one("other", "b")
    assert a.lock.take() and a.take() == 1
    a.give_back()
    assert b.lock.take() and b.take() == 2
    assert a.elsewhere() is None
    machines.look(a)
    assert a.elsewhere() == FAR


def test_its_holder_renews_it(machines: Machines) -> None:
    a = machines.one("near", "a")
    assert a.lock.take() and a.take() == 1
    before = current_lease()
    machines.look(a, for_s=2.0)
    after = current_lease()
    assert before is not None and after is not None and after.renewed_at > before.renewed_at
    assert a.epoch == 1 and not machines.lost


def test_with_the_database_away_its_holder_leads_on_the_lock_decides_and_the_row_learns_of_it_later(
    machines: Machines, away: pytest.MonkeyPatch
) -> None:
    a, b = machines.one("near", "a"), machines.one("near", "b")
    assert a.lock.take() and a.take() == 1
    machines.look(a, for_s=3.0)
    assert a.epoch == 1 and not machines.lost
    a.lock.give_back()
    assert b.lock.take() and b.take() == 2, "the file of the lock knows the epoch"
    away.undo()
    machines.look(b)
    lease = current_lease()
    assert lease is not None and (lease.holder, lease.epoch) == ("near/b", 2)
    assert b.epoch == 2


def test_with_the_database_away_nobody_follows_another_machine_not_even_after_a_restart(
    machines: Machines, away: pytest.MonkeyPatch
) -> None:
    away.undo()
    a, b = machines.one("near", "a"), machines.one("other", "b")
    assert a.lock.take() and a.take() == 1
    machines.look(b)
    for name in ("current_lease", "take_lease"):
        away.setattr(module, name, no_answer)
    again = machines.one("other", "again")
    for one in (b, again):
        assert one.lock.take() and one.take() is None
        assert one.elsewhere() == FAR
        one.lock.give_back()


def test_who_led_without_the_database_gives_way_to_another_machine_that_led_with_it(
    machines: Machines, away: pytest.MonkeyPatch
) -> None:
    a, b = machines.one("near", "a"), machines.one("other", "b")
    assert a.lock.take() and a.take() == 1
    away.undo()
    assert b.lock.take() and b.take() == 1
    machines.look(a)
    assert machines.lost == {"a"} and a.epoch is None
    lease = current_lease()
    assert lease is not None and lease.holder == "other/b"
