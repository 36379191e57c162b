"""May this dispatcher decide, where several machines share an installation? Two at once must be impossible.

It may while it has renewed the lease row of late or, with the database away, while more than half of the gateways that the
row last named are attached to it. Who takes a stale row from another machine decides nothing before half of those have come
to it: the one before, cut off, then has no more than half. The times make up for what is under way:

    the row       counts for ROW_LASTS_S from before it was asked for; others take it when it is older than that
    a gateway     counts for ECHO_LASTS_S from the sending of the last beat it has echoed, and not before it has been here for
                  SETTLES_S: by then nobody else counts it. It never goes back to an older epoch.

Pure but for `row_holds`, which a thread may call. Times are seconds of the process's own monotonic clock.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf

ROW_LASTS_S = 1.0
ECHO_LASTS_S = 1.0
SETTLES_S = 1.25


class Mandate:
    def __init__(self, member_sets: Iterable[Collection[str]] = (), *, row_lasts_s: float = ROW_LASTS_S) -> None:
        """`member_sets`: the gateways the row names; two, while it is not known which of them was written."""
        self._row_lasts_s = row_lasts_s
        self.member_sets = tuple(frozenset(members) for members in member_sets)
        self._row_until_s = -inf
        self._since_s: dict[str, float] = {}
        self._echoed_s: dict[str, float] = {}

    # The row

    def row_holds(self, asked_s: float) -> None:
        """It was renewed, by a call that began then."""
        self._row_until_s = asked_s + self._row_lasts_s

    # Gateways

    def came(self, gateway: str, now_s: float) -> None:
        """It has said what it holds."""
        self._since_s[gateway], self._echoed_s[gateway] = now_s, -inf

    def echoed(self, gateway: str, sent_s: float) -> None:
        """It has answered the beat that was sent then."""
        if gateway in self._since_s:
            self._echoed_s[gateway] = max(self._echoed_s[gateway], sent_s)

    def is_own(self, gateway: str) -> None:
        """This process is that gateway."""
        self._since_s[gateway], self._echoed_s[gateway] = -inf, inf

    def left(self, gateway: str) -> None:
        self._since_s.pop(gateway, None)
        self._echoed_s.pop(gateway, None)

    def gateways(self) -> list[str]:
        """That are attached."""
        return list(self._since_s)

    # The question

    def holds(self, now_s: float) -> bool:
        return now_s <= self._row_until_s or self.has_majority(now_s)

    def has_majority(self, now_s: float) -> bool:
        """More than half of each set. Of nobody, nobody has."""
        return bool(self.member_sets) and all(2 * self._count(members, now_s) > len(members) for members in self.member_sets)

    def _count(self, members: frozenset[str], now_s: float) -> int:
        return sum(
            1
            for gateway in members
            if self._since_s.get(gateway, inf) <= now_s - SETTLES_S and self._echoed_s[gateway] + ECHO_LASTS_S >= now_s
        )


class Contest:
    """A stale row was taken: who led before may live, cut off, with gateways of his."""

    def __init__(self, members: Collection[str]) -> None:
        self._members = frozenset(members)
        self._sworn: set[str] = set()
        self._won_s: float | None = None if self._members else -inf  # of nobody, nobody has more than half

    def came(self, gateway: str, now_s: float) -> None:
        """It has seen our epoch: it never goes back to whoever led before."""
        self._sworn.add(gateway)
        self._look(now_s)

    def signed_off(self, gateways: Collection[str], now_s: float) -> None:
        """These have ended; by their own word or an operator's."""
        self._sworn |= self._members & frozenset(gateways)
        self._look(now_s)

    def is_won(self, now_s: float) -> bool:
        self._look(now_s)
        return self._won_s is not None and now_s >= self._won_s + SETTLES_S

    def missing(self) -> frozenset[str]:
        return self._members - self._sworn

    def _look(self, now_s: float) -> None:
        if self._won_s is None and 2 * len(self._members & self._sworn) >= len(self._members):
            self._won_s = now_s


@dataclass(slots=True)
class Claim:
    """Of one epoch: what has to be so before it decides anything, and while it does."""

    mandate: Mandate
    contest: Contest | None = None
    has_row: bool = True
    """False: the database was away when it began."""
    is_barred: bool = False
    """The row can be read and is another's: it is to be taken first."""
    signed_off: Callable[[], Collection[str]] = frozenset
    on_open: Callable[[], None] = lambda: None
    proposed: frozenset[str] | None = None
    """The gateways that the row is to name next: after the standbys were told."""
    told: frozenset[str] | None = None

    def came(self, gateway: str, now_s: float) -> None:
        self.mandate.came(gateway, now_s)
        if self.contest is not None:
            self.contest.came(gateway, now_s)

    def took_row(self, contest: Contest | None, now_s: float) -> None:
        """Later than it began. Who has come by then has seen this epoch."""
        for gateway in self.mandate.gateways() if contest is not None else ():
            assert contest is not None
            contest.came(gateway, now_s)
        self.contest, self.has_row, self.is_barred = contest, True, False

    def may_open(self, now_s: float) -> bool:
        contest = self.contest
        if self.is_barred:
            return False
        if contest is not None:
            contest.signed_off(self.signed_off(), now_s)
            if not contest.is_won(now_s):
                return False
        return self.has_row or self.mandate.has_majority(now_s)
