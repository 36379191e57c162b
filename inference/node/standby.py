"""What a replica that stands by does with the memory of its GPU: vLLM's sleep mode gives it back until it is to serve."""

from collections.abc import Callable
from dataclasses import dataclass

from inference.engines.client import EngineClient
from inference.engines.environments import EngineKind
from inference.node.tools import Tools

SLEEP_LIMIT_S = 120.0
WAKE_LIMIT_S = 120.0

Turn = Callable[[EngineClient], None]
"""Raises EngineFailed."""


@dataclass
class Standby:
    """Of one start of an engine. `sleeps`: whether its platform has the mode, and the node uses it."""

    sleeps: bool = False
    is_asleep: bool = False

    def turn(self, *, is_to_serve: bool) -> Turn | None:
        """What is to be done with it before anything else; `turned` when that is done."""
        if is_to_serve:
            return _wake if self.is_asleep else None
        return _sleep if self.sleeps and not self.is_asleep else None

    def turned(self) -> None:
        self.is_asleep = not self.is_asleep


def standby_of(tools: Tools, engine_environment: str) -> Standby:
    kind = tools.find_environment(engine_environment).kind
    return Standby(sleeps=tools.settings.engine.sleeps and kind is EngineKind.CUDA)


def _sleep(engine: EngineClient) -> None:
    """One that sleeps already, as an earlier agent left it, sleeps on."""
    engine.sleep(timeout_s=SLEEP_LIMIT_S)


def _wake(engine: EngineClient) -> None:
    engine.wake_up(timeout_s=WAKE_LIMIT_S)
    engine.one_token(timeout_s=WAKE_LIMIT_S)  # before a customer's request is its first
