"""Celery's broker as the outbox sees it: in memory, and away when the test says so."""

from typing import Any

import pytest
from kombu.exceptions import OperationalError

from headway.celery_app import app
from headway.circuit import Circuit
from workers.services import outbox


class Broker:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_away: bool = False) -> None:
        self.is_away = is_away
        self.told: list[int] = []
        monkeypatch.setattr(app, "send_task", self._send)
        monkeypatch.setattr(outbox, "broker", Circuit("broker"))  # no test before has found it away

    def _send(self, _name: str, arguments: list[int], **_options: Any) -> None:
        if self.is_away:
            raise OperationalError("away")
        self.told += arguments
