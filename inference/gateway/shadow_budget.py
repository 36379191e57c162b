"""This process's part of what mirrored requests may cost, by rollout. Nothing is spent that was not taken before.

Requests take from it on the event loop; the thread that carries records to the ledger fetches more from the rollout's row, a
little ahead, and gives back what has not been used for a while. A process that dies loses its part, and the cap holds.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError, connection

from inference.policy.decisions import PICOS_A_MICRO
from inference.services.shadow_budget import give_back_shadow_part, take_shadow_part

log = structlog.get_logger(__name__)

PARTS = 64
"""So much of what is left is fetched at a time, at least what one request needs."""
IDLE_ROUNDS = 120
"""Rounds of the thread (half a second each) without a request, before what is left of a part is given back."""
EMPTY_ROUNDS = 20
"""Rounds until more is asked for where there was nothing."""


@dataclass(slots=True)
class _Part:
    free_picos: int = 0
    wish_micros: int = 0
    idle_rounds: int = 0
    empty_rounds: int = 0


class ShadowBudget:
    """`take` and `settle` on the event loop, `refill` on the thread."""

    def __init__(
        self,
        fetch: Callable[..., int] = take_shadow_part,
        give_back: Callable[..., None] = give_back_shadow_part,
    ) -> None:
        self._fetch, self._give_back = fetch, give_back
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        self._is_closed = False

    def take(self, rollout: str, picos: int, *, left_micros: int) -> bool:
        """Whether a request may cost so much. If not, more is fetched; `left_micros`: what the feed says there is."""
        with self._lock:
            if self._is_closed:
                return False
            part = self._parts.setdefault(rollout, _Part())
            part.idle_rounds = 0
            if part.free_picos >= picos:
                part.free_picos -= picos
                return True
            missing_micros = -(-(picos - part.free_picos) // PICOS_A_MICRO)
            part.wish_micros = max(part.wish_micros, missing_micros, left_micros // PARTS)
            return False

    def settle(self, rollout: str, *, taken_picos: int, spent_picos: int) -> None:
        with self._lock:
            self._parts.setdefault(rollout, _Part()).free_picos += taken_picos - spent_picos

    def close(self) -> None:
        """Nothing more is mirrored: the next round gives everything back."""
        with self._lock:
            self._is_closed = True

    def refill(self) -> None:
        """Fetch what is wished for, give back what nobody uses."""
        try:
            for rollout in self._known():
                self._refill(rollout)
        except (DatabaseError, InterfaceError) as error:
            connection.close()  # the next round makes another
            log.warning("shadow_budget_not_filled", reason=type(error).__name__)

    def _known(self) -> list[str]:
        with self._lock:
            return list(self._parts)

    def _refill(self, rollout: str) -> None:
        with self._lock:
            part = self._parts[rollout]  # nobody else takes one away
            part.idle_rounds += 1
            part.empty_rounds = max(0, part.empty_rounds - 1)
            is_idle = self._is_closed or part.idle_rounds > IDLE_ROUNDS
            wish = 0 if is_idle or part.empty_rounds else part.wish_micros
            spare = max(0, part.free_picos) // PICOS_A_MICRO if is_idle else 0
            part.free_picos -= spare * PICOS_A_MICRO
            if is_idle:
                del self._parts[rollout]  # what still runs of it makes a new one when it ends
        if spare:
            self._give_back(rollout=rollout, micros=spare)
        if not wish:
            return
        fetched = self._fetch(rollout=rollout, micros=wish)
        with self._lock:
            part.free_picos += fetched * PICOS_A_MICRO
            part.wish_micros = 0
            part.empty_rounds = 0 if fetched else EMPTY_ROUNDS
