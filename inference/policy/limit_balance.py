"""What a tenant that pays in advance has left: all credit it was ever given, less all it has ever spent.

Two tell of spending, in any order. The ledger tells its row: all that is in it. Settlements are made here, and are not in
the row until they are acknowledged (a moment before or after the row that has them). What is spent is therefore at least
`counted` (a row, and all that was settled here since) and the newest row with what is not acknowledged; both bounds
are below or at the truth but for moments, in which the greater one is above it: never less is believed spent than was.
"""

from collections.abc import Iterable
from math import inf


class BalanceState:
    __slots__ = ("counted", "credit_picos", "eaten_to", "expiring", "next_expiry_s", "row", "told_by", "unacknowledged")

    def __init__(self) -> None:
        self.credit_picos: int | None = None  # None: this tenant pays later
        self.row = 0
        self.counted = 0
        self.unacknowledged = 0
        self.expiring: list[tuple[float, int]] = []  # when, and how much of the credit was not spent; soonest first
        self.eaten_to = 0  # what was spent by then is off it
        self.next_expiry_s = inf
        self.told_by = 0

    def tell(
        self, credit_picos: int | None, spent_picos: int, expiring: Iterable[tuple[float, int]], *, told_by: int, now_s: float
    ) -> None:
        """The ledger's word: `spent_picos` of all time, and the credit that belongs to it.

        `expiring`: of that credit, what has not been spent and goes at an instant. Where the instant is over already, all
        of it is gone: a newer row says how much was spent before.
        """
        self.row = max(self.row, spent_picos)
        self.counted = max(self.counted, self.row)
        self.credit_picos, self.told_by, self.eaten_to = credit_picos, told_by, self.row
        lost = 0
        self.expiring = []
        for at_s, picos in sorted(expiring):
            if at_s <= now_s:
                lost += picos
            else:
                self.expiring.append((at_s, picos))
        if self.credit_picos is not None:
            self.credit_picos -= lost
        self.next_expiry_s = self.expiring[0][0] if self.expiring else inf

    def advance(self, now_s: float) -> None:
        """What expires by now goes from the credit: as much of it as was not spent. Call it before what was spent changes."""
        spent_picos = self.spent_picos()
        eaten, self.eaten_to = max(0, spent_picos - self.eaten_to), spent_picos
        left: list[tuple[float, int]] = []
        for at_s, picos in self.expiring:
            of_this = min(eaten, picos)
            eaten -= of_this
            if at_s > now_s:
                left.append((at_s, picos - of_this))
            elif self.credit_picos is not None:
                self.credit_picos -= picos - of_this
        self.expiring, self.next_expiry_s = left, left[0][0] if left else inf

    def spent_picos(self) -> int:
        return max(self.counted, self.row + self.unacknowledged)

    def left_picos(self, reserved_picos: int) -> int | None:
        """What another request may cost; below zero when less is left than runs. None: it pays later."""
        return None if self.credit_picos is None else self.credit_picos - self.spent_picos() - reserved_picos

    def settle(self, picos: int) -> None:
        self.counted += picos
        self.unacknowledged += picos

    def acknowledge(self, picos: int) -> None:
        self.unacknowledged = max(0, self.unacknowledged - picos)
