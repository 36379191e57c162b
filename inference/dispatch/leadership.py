"""Who may decide: the one that holds this installation's lock on its machine and, among machines, the lease row.

A thread looks at the row four times a second. Whoever leads renews it, and is told at once when it is someone else's; with
the database away it leads on, as nobody can take the row then, and the lock keeps the others of its machine away. Where
the row was last seen with another machine, nobody here takes over until the database can say that it is free.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import structlog
from django.db import DatabaseError, InterfaceError, connection

from headway import env
from headway.clock import Clock
from headway.errors import ConfigurationError
from inference.dispatch.address import Address, Tls, parse_address
from inference.dispatch.brain_lock import BrainLock
from inference.dispatch.mandate import Claim, Contest, Mandate
from inference.services import feed_progress
from inference.services.lease import LeaseView, current_lease, give_lease_back, renew_lease, take_lease

log = structlog.get_logger(__name__)

ROW_LASTS_RATIO = 0.8
"""Of the time after which others take the row: so long its holder decides by it."""


@dataclass(frozen=True, slots=True)
class LeaseTunables:
    poll_s: float = 0.25
    """How often the row is looked at."""
    renew_s: float = 0.5
    """How often its holder renews it."""
    stale_s: float = 1.25
    """Unchanged for so long, and its holder not reachable: another machine may take it."""
    silent_s: float = 30.0
    """The same where the holder has no address for other machines."""

    @classmethod
    def from_env(cls) -> "LeaseTunables":
        default = cls()
        renew_s = env.seconds("HEADWAY_LEASE_RENEW_S", default.renew_s, at_least=0.1)
        poll_s = env.seconds("HEADWAY_LEASE_POLL_S", default.poll_s, at_least=0.05)
        return cls(poll_s=poll_s, renew_s=renew_s, stale_s=max(default.stale_s, 2 * renew_s + poll_s))


class _Seen(msgspec.Struct, frozen=True):
    """The row as last seen, in a file: for a start with the database away."""

    holder: str
    address: str
    epoch: int
    members: tuple[str, ...] = ()


class Leadership:
    """`take`, `known_gateways` and `give_back` block (database); the rest may be called from any thread."""

    def __init__(
        self,
        *,
        machine: str,
        name: str,
        address: Address,
        lock: BrainLock,
        seen_path: Path,
        clock: Clock,
        tunables: LeaseTunables | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`machine`: whoever shares it shares the lock. `address`: what is written into the row, for others. `tls`: whom to
        believe on other machines.
        """
        self.holder, self.address, self.lock = f"{machine}/{name}", address, lock
        self.epoch: int | None = None
        """While it leads."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called on the thread when the row is someone else's."""
        self.claim: Claim | None = None
        """While it leads: what it may do by it. None: nobody of another machine can decide in its place."""
        self._is_shared = address.path is None
        self._is_open = True
        self._gone: frozenset[str] = frozenset()
        self._machine, self._clock, self._seen_path = machine, clock, seen_path
        self._tunables, self._tls = tunables or LeaseTunables(), tls
        self._row: LeaseView | None = None
        self._changed_s = clock.monotonic_s()  # when the row was first seen as it is
        self._renewed_s = 0.0
        self._is_away = False
        self._mutex = threading.Lock()  # of all that asks the database
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._seen = self._read_seen()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def elsewhere(self) -> Address | None:
        """Of a dispatcher on another machine, if the row was last seen with one."""
        seen = self._seen
        if seen is None or not seen.address or self._is_ours(seen.holder):
            return None
        try:
            return parse_address(seen.address, tls=self._tls)
        except ConfigurationError:
            return None

    def newest_epoch(self) -> int:
        """That the row was seen with; 0: it was not seen."""
        return self._seen.epoch if self._seen else 0

    def take(self, *, is_reachable: bool = False, gone: Sequence[Sequence[str]] = ()) -> int | None:
        """Lead: the new epoch. None: someone else may be deciding. The caller holds the lock.

        `is_reachable`: a connection to the row's holder stands. `gone`: its machine says that it has ended, and it had
        named these sets of gateways; with the database away the majority of them is asked.
        """
        assert self.lock.is_held
        with self._mutex:
            try:
                return self._take(is_reachable)
            except (DatabaseError, InterfaceError) as error:
                log.warning("lease_database_away", reason=f"{type(error).__name__}: {error}")
                return self._take_without_database(gone)
            finally:
                self._close_connection()

    def known_gateways(self) -> frozenset[str] | None:
        """Those that may hold grants; None: the database is away."""
        with self._mutex:
            try:
                return feed_progress.gateways_that_may_live(self._clock.now())
            except (DatabaseError, InterfaceError):
                return None
            finally:
                self._close_connection()

    def give_back(self) -> None:
        """The row first, then the lock: who takes the lock finds the row free."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            with self._mutex:
                try:
                    give_lease_back(holder=self.holder, epoch=epoch)
                except (DatabaseError, InterfaceError):
                    log.warning("lease_not_given_back", epoch=epoch)
                finally:
                    self._close_connection()
        self.lock.give_back()

    # Taking

    def _take(self, is_reachable: bool) -> int | None:
        row = self._look()
        if row is not None and not self._may_follow(row, is_reachable):
            return None
        epoch = max(self.lock.epoch(), row.epoch if row else 0) + 1
        contest = self._contest(row)
        asked_s = self._clock.monotonic_s()
        if not self._take_row(row, epoch, is_open=contest is None):
            return None
        self._claim(contest, [row.members if row else ()], has_row=True)
        if self.claim is not None:
            self.claim.mandate.row_holds(asked_s)
        return self._lead(epoch)

    def _take_row(self, row: LeaseView | None, epoch: int, *, is_open: bool) -> bool:
        return take_lease(
            holder=self.holder,
            address=str(self.address),
            epoch=epoch,
            expected_epoch=row.epoch if row else None,
            expected_renewed_at=row.renewed_at if row else None,
            now=self._clock.now(),
            is_open=is_open,
        )

    def _contest(self, row: LeaseView | None) -> Contest | None:
        """With whoever may still decide by the majority of the gateways that the row names."""
        if row is None or (row.is_open and (not row.address or row.address.startswith("unix:") or self._is_ours(row.holder))):
            return None
        return Contest(row.members)

    def _claim(self, contest: Contest | None, member_sets: Sequence[Sequence[str]], *, has_row: bool) -> None:
        self._is_open = contest is None and has_row
        if self._is_shared or contest is not None:
            mandate = Mandate(member_sets, row_lasts_s=ROW_LASTS_RATIO * self._tunables.stale_s)
            self.claim = Claim(mandate, contest, has_row, signed_off=lambda: self._gone, on_open=self._opened)

    def _opened(self) -> None:
        """From now on the row may name the gateways that are attached here."""
        self._is_open = True

    def _take_without_database(self, gone: Sequence[Sequence[str]]) -> int | None:
        """The lock says that nobody of this machine decides."""
        if self.elsewhere() is not None and not (gone and self._is_shared):
            return None
        members = gone or ([self._seen.members] if self._seen else [])
        self._claim(None, members, has_row=False)
        return self._lead(max(self.lock.epoch(), self._seen.epoch if self._seen else 0) + 1)

    def _lead(self, epoch: int) -> int:
        self.lock.remember(epoch)
        self.epoch, self._renewed_s = epoch, self._clock.monotonic_s()
        log.info("dispatcher_leads", epoch=epoch, holder=self.holder)
        return epoch

    def _may_follow(self, row: LeaseView, is_reachable: bool) -> bool:
        if not row.address or self._is_ours(row.holder):
            return True
        if is_reachable or self._clock.monotonic_s() - self._changed_s <= self._tunables.stale_s:
            return False
        # Nobody here can see whether one without an address for others lives: it may only have lost the database.
        age_s = (self._clock.now() - row.renewed_at).total_seconds()
        return not row.address.startswith("unix:") or age_s > self._tunables.silent_s

    def _is_ours(self, holder: str) -> bool:
        """Of this machine: who held it there has lost the lock."""
        return holder.rpartition("/")[0] == self._machine

    # The thread

    def _run(self) -> None:
        try:
            while not self._is_stopping.wait(self._tunables.poll_s):
                with self._mutex:
                    self._round()
        finally:
            connection.close()

    def _round(self) -> None:
        try:
            row = self._look()
            if self.epoch is not None:
                self._keep(row, self.epoch)
                claim = self.claim
                if claim is not None and claim.contest is not None and not self._is_open:
                    self._gone = feed_progress.signed_off(claim.contest.missing())
        except (DatabaseError, InterfaceError) as error:
            if not self._is_away:
                log.warning("lease_database_away", reason=f"{type(error).__name__}: {error}")
            self._is_away = True
            if self.claim is not None:
                self.claim.is_barred = False
            if not connection.in_atomic_block:  # tests call this in theirs
                connection.close()
        else:
            self._is_away = False

    def _look(self) -> LeaseView | None:
        row = current_lease()
        if row != self._row:
            self._row, self._changed_s = row, self._clock.monotonic_s()
            seen = None if row is None else _Seen(row.holder, row.address, row.epoch, row.members)
            if seen is not None and seen != self._seen:
                self._seen = seen
                self._write_seen(seen)
        return row

    def _keep(self, row: LeaseView | None, epoch: int) -> None:
        now_s, now = self._clock.monotonic_s(), self._clock.now()
        if row is not None and (row.holder, row.epoch) == (self.holder, epoch):
            if now_s - self._renewed_s < self._tunables.renew_s:
                return
            if self._renew(epoch, now_s, now):
                self._renewed_s = now_s
                return
        elif row is None or (row.epoch < epoch and self._may_follow(row, is_reachable=False)):
            # The database was away at the takeover, or is another one.
            contest = None if self._is_open else self._contest(row)
            if self._take_row(row, epoch, is_open=contest is None):
                claim = self.claim
                if claim is not None:
                    claim.took_row(contest, now_s)
                    claim.mandate.row_holds(now_s)
                return
        elif self.claim is not None and not self._is_open and row.epoch < epoch:
            self.claim.is_barred = True  # it began without the row, which can be read now, and is not stale yet
            return
        log.error("lease_lost", epoch=epoch, to="nobody" if row is None else f"{row.holder} ({row.epoch})")
        self.epoch = None
        self.on_lost()

    def _renew(self, epoch: int, now_s: float, now: datetime) -> bool:
        claim = self.claim
        members: list[str] | None = None
        if claim is not None and self._is_open:
            claim.proposed = feed_progress.gateways_that_may_live(now)
            if claim.told is not None:
                members = sorted(claim.told)
                # Until the database has said that it took them, both count: its answer may be lost.
                claim.mandate.member_sets = (*claim.mandate.member_sets[-1:], claim.told)
        if not renew_lease(holder=self.holder, epoch=epoch, now=now, members=members):
            return False
        if claim is not None:
            if members is not None:
                claim.mandate.member_sets = (frozenset(members),)
            claim.mandate.row_holds(now_s)
        return True

    def _close_connection(self) -> None:
        if threading.current_thread() is not self._thread and not connection.in_atomic_block:
            connection.close()

    # The file

    def _read_seen(self) -> _Seen | None:
        try:
            return msgspec.json.decode(self._seen_path.read_bytes(), type=_Seen)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write_seen(self, seen: _Seen) -> None:
        partial = self._seen_path.with_name(f"{self._seen_path.name}.{threading.get_ident()}.part")
        try:
            partial.write_bytes(msgspec.json.encode(seen))
            partial.replace(self._seen_path)
        except OSError as error:
            log.warning("lease_not_remembered", file=str(self._seen_path), reason=error.strerror)
