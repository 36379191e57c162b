import threading
import time

import pytest
from django.db import OperationalError

from inference.node.database_thread import DatabaseThread


def test_it_returns_what_the_work_returns_from_a_thread_of_its_own() -> None:
    call = DatabaseThread()
    first, second = call(threading.get_ident), call(threading.get_ident)
    assert first == second != threading.get_ident()


def test_it_raises_what_the_work_raises() -> None:
    def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        DatabaseThread()(work)


def test_a_call_that_hangs_fails_in_time_and_the_next_ones_at_once() -> None:
    call, thaw = DatabaseThread(limit_s=0.1), threading.Event()
    with pytest.raises(OperationalError, match="no answer within"):
        call(thaw.wait)
    started_s = time.monotonic()
    for _ in range(100):
        with pytest.raises(OperationalError, match="has not come back yet"):
            call(lambda: "never run")
    assert time.monotonic() - started_s < 5
    thaw.set()
    deadline_s = time.monotonic() + 5
    while True:
        try:
            assert call(lambda: "back") == "back"
            return
        except OperationalError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
