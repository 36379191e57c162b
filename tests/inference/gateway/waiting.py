"""Wait for what another thread does: look often, give up loudly."""

import time
from collections.abc import Callable


def eventually(is_true: Callable[[], object], *, what: str = "it", within_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline_s, f"{what} did not happen within {within_s:g} s"
        time.sleep(0.005)
