import threading
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from inference.models import GatewayFeed
from inference.services.feed_progress import acknowledge, acknowledgements, forget_gateway, wait_for_acknowledgement


@pytest.mark.django_db
def test_only_gateways_that_live_are_asked_for() -> None:
    now = timezone.now()
    acknowledge(gateway="g1", applied_change_id=5, now=now)
    acknowledge(gateway="g2", applied_change_id=4, now=now - timedelta(seconds=9))
    acknowledge(gateway="g3", applied_change_id=9, now=now - timedelta(seconds=11))
    assert acknowledgements(5, now) == [("g1", True), ("g2", False)]
    acknowledge(gateway="g2", applied_change_id=6, now=now)
    forget_gateway(gateway="g1")
    assert acknowledgements(5, now) == [("g2", True)]
    assert GatewayFeed.objects.count() == 2


@pytest.mark.django_db
def test_waiting_ends_at_once_when_nobody_is_there_and_with_the_time_when_somebody_does_not_answer() -> None:
    started_s = time.monotonic()
    assert wait_for_acknowledgement(5, 10.0) == []
    assert time.monotonic() - started_s < 5.0
    acknowledge(gateway="g1", applied_change_id=4, now=timezone.now())
    assert wait_for_acknowledgement(5, 0.2) == [("g1", False)]


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_when_the_last_has_acknowledged() -> None:
    for gateway in ("g1", "g2"):
        acknowledge(gateway=gateway, applied_change_id=4, now=timezone.now())

    def catch_up() -> None:
        for gateway in ("g1", "g2"):
            acknowledge(gateway=gateway, applied_change_id=5, now=timezone.now())
        connection.close()

    thread = threading.Timer(0.1, catch_up)
    thread.start()
    assert wait_for_acknowledgement(5, 10.0) == [("g1", True), ("g2", True)]
    thread.join()
