"""Values of JSON, and a little more, that a fuzzer grows from its bytes."""

from collections.abc import Sequence
from typing import Any

LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 10**9, 10**30, 8.0, 1.5, float("inf"), [], {}),
    *("", "stop", "a", "\ud83d", "1e999", "error", "user", "text", "function", "m"),
)
MAX_DEPTH = 4


def grown(provider: Any, names: Sequence[str], depth: int = 0) -> Any:
    kind = provider.ConsumeIntInRange(0, 3 if depth < MAX_DEPTH else 0)
    if kind <= 1:
        return LEAVES[provider.ConsumeIntInRange(0, len(LEAVES) - 1)]
    values = [grown(provider, names, depth + 1) for _ in range(provider.ConsumeIntInRange(0, 3))]
    if kind == 2:
        return values
    return {names[provider.ConsumeIntInRange(0, len(names) - 1)]: value for value in values}
