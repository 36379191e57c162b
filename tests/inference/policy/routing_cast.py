"""What the tests of routing share: a router with short words for asking, beginning and ending."""

from collections import Counter
from collections.abc import Iterable

from inference.policy.decisions import Ask, Ending, Reason, ReplicaSpec, Usage
from inference.policy.routing import Choice, Router, RoutingTunables

TUNABLES = RoutingTunables(block_tokens=100, prefill_tokens_per_s=10_000.0)


def spec(name: str, cap: int = 8, **more: object) -> ReplicaSpec:
    return ReplicaSpec(name, cap, **more)  # type: ignore[arg-type]


def chain(*names: object) -> tuple[int, ...]:
    """Block hashes: each says all that stands before it."""
    return tuple(hash(names[: end + 1]) for end in range(len(names)))


def prompt(name: str, num_blocks: int) -> tuple[int, ...]:
    return chain(*((name, at) for at in range(num_blocks)))


class Desk:
    """One router; requests are numbered by themselves."""

    def __init__(self, specs: Iterable[ReplicaSpec], tunables: RoutingTunables = TUNABLES) -> None:
        self.router = Router(tunables)
        self.router.set_replicas(list(specs), 0.0)
        self.chosen: Counter[str] = Counter()
        self.reasons: Counter[Reason] = Counter()
        self._asked = 0

    def ask(self, blocks: tuple[int, ...] = (), tokens: int | None = None, **more: object) -> Ask:
        self._asked += 1
        size = len(blocks) * self.router.tunables.block_tokens + 10 if tokens is None else tokens
        return Ask(f"q{self._asked}", "m", "acme", "k", prompt_tokens=size, max_tokens=100, blocks=blocks, **more)  # type: ignore[arg-type]

    def send(self, blocks: tuple[int, ...] = (), now_s: float = 0.0, **more: object) -> tuple[str, Choice]:
        """Its id and the choice; it runs now."""
        ask = self.ask(blocks, **more)  # type: ignore[arg-type]
        choice = self.router.choose(ask, now_s)
        assert choice is not None, "no room"
        self.router.begin(ask, choice, now_s)
        self.chosen[choice.replica] += 1
        self.reasons[choice.reason] += 1
        return ask.id, choice

    def serve(self, blocks: tuple[int, ...] = (), now_s: float = 0.0, **more: object) -> Choice:
        """It runs and ends well at once."""
        name, choice = self.send(blocks, now_s, **more)
        self.router.first_token(name, now_s)
        self.router.end(name, Ending.WELL, Usage(cached_tokens=choice.cached_tokens), now_s)
        return choice

    def fail(self, blocks: tuple[int, ...] = (), now_s: float = 0.0, **more: object) -> Choice:
        name, choice = self.send(blocks, now_s, **more)
        self.router.end(name, Ending.FAILED, None, now_s)
        return choice
