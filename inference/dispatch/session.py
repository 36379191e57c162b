"""What one gateway says to the brain: every call of a `Link` as it arrives, wherever the gateway is."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from billing.services.ledger import UsageDraft
from inference.policy.decisions import Ask, Decision, Ending, RateView, Usage

if TYPE_CHECKING:
    from inference.dispatch.host import BrainHost

Deliver = Callable[[list[Decision]], None]


class Session:
    """What one gateway says. Ids are its requests'; one that is not known is no error."""

    def __init__(self, host: "BrainHost", deliver: Deliver) -> None:
        self.deliver = deliver
        self.ids: set[str] = set()
        self._host = host

    def submit(self, ask: Ask) -> None:
        self._host.submit(self, ask)

    # After a takeover: what a gateway says is so

    def restore_running(self, ask: Ask, replica: str, *, age_s: float, completion_tokens: int) -> None:
        """It runs there, `ask` as it was granted. Known already: nothing happens."""
        self._host.own(self, ask.id)
        self._host.repeats.claim(ask, self._host.now_s())
        self._host.brain.restore_running(
            ask, replica, age_s=age_s, completion_tokens=completion_tokens, now_s=self._host.now_s()
        )

    def restore_away(self, ask: Ask, *, age_s: float) -> None:
        """It holds its reservation and will ask again; a slot that it had here is free."""
        self._host.own(self, ask.id)
        now_s = self._host.now_s()
        self._host.repeats.claim(ask, now_s)
        self._host.act(self._host.brain.end(ask.id, Ending.NEUTRAL, None, now_s))
        self._host.brain.restore_away(ask, age_s=age_s, now_s=now_s)

    def restore_waiting(self, ask: Ask, *, age_s: float, waited_s: float) -> None:
        """Reserved at once; queued as soon as grants may be made."""
        self.restore_away(ask, age_s=age_s)
        self._host.wait_again(ask, waited_s=waited_s)

    def restore_settled(self, ask: Ask, *, age_s: float, usage: Usage, is_acknowledged: bool) -> None:
        if ask.id in self.ids:  # its end was on its way when the connection broke
            self.end(ask.id, Ending.NEUTRAL, usage)
        else:
            self._host.brain.restore_settled(
                ask, age_s=age_s, usage=usage, is_acknowledged=is_acknowledged, now_s=self._host.now_s()
            )

    def first_token(self, request_id: str) -> None:
        self._host.brain.first_token(request_id, self._host.now_s())
        self._host.arm()

    def progress(self, tokens: Iterable[tuple[str, int]]) -> None:
        """Tokens made so far, over all attempts, of requests that run."""
        now_s = self._host.now_s()
        for request_id, completion_tokens in tokens:
            self._host.brain.progress(request_id, completion_tokens, now_s)

    def end(self, request_id: str, ending: Ending, usage: Usage | None) -> None:
        """An attempt has ended. Usage None: it will ask again; else this is the last of it."""
        if usage is not None:
            self._host.forget(self, request_id)
            self._host.repeats.ended(request_id, made_tokens=usage.completion_tokens > 0, now_s=self._host.now_s())
        self._host.release(request_id)
        self._host.act(self._host.brain.end(request_id, ending, usage, self._host.now_s()))

    def parked(self, request_id: str, ask: Ask) -> None:
        self._host.act(self._host.brain.parked(request_id, ask, self._host.now_s()))

    def final(self, draft: UsageDraft) -> None:
        """This process's own journal has it; another copy here would die with it."""

    def rates(self, tenant: str, key: str, model: str, answer: Callable[[RateView], None]) -> None:
        """How the limits of this key stand."""
        answer(self._host.brain.rates(tenant, key, model, self._host.now_s()))

    def close(self) -> None:
        """The gateway has gone: what it held is free, and was used as far as it has told."""
        self.lose(self.ids)

    def lose(self, request_ids: Iterable[str]) -> None:
        for request_id in list(request_ids):
            self.end(request_id, Ending.NEUTRAL, self._host.brain.usage_so_far(request_id))
