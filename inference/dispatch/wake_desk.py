"""Where the dispatcher asks for a replica of a pool at zero: on the feed's thread, as the event loop calls no database.

One row a pool (services/wake_ups.py), however many requests wait and however often it is asked. While they wait the row is
looked at again; nobody who takes it in time, or no database, means that nothing will be started, and they are told.
"""

from collections.abc import Callable

from inference.services.wake_ups import WakeView, ask_for_wake_up

TAKEN_WITHIN_S = 10.0
"""A request is taken by a worker's sweep, which comes every second."""
AWAY = "the database is away"
NOBODY = "no worker takes the request for a replica"

Ask = Callable[..., WakeView]


class WakeDesk:
    def __init__(self, asker: str, ask: Ask = ask_for_wake_up) -> None:
        self.on_failed: Callable[[str, str], None] = lambda model, why: None
        """(model, why), on the feed's thread."""
        self._asker, self._ask = asker, ask
        self._wanted: dict[str, None] = {}

    def want(self, model: str) -> None:
        """From the event loop, again and again while somebody waits."""
        self._wanted[model] = None

    def work(self, is_database_there: bool) -> None:
        """The feed's thread. Raises what the database raises; who is wanted is asked for again with the next look."""
        for model in list(self._wanted):
            self._wanted.pop(model, None)
            why = self._why_not(model) if is_database_there else AWAY
            if why:
                self.on_failed(model, why)

    def _why_not(self, model: str) -> str:
        view = self._ask(model=model, asked_by=self._asker)
        return view.refused or (NOBODY if not view.is_taken and view.age_s > TAKEN_WITHIN_S else "")
