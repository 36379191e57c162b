"""Celery's beat, of which one leads."""

import os
import secrets
import time
from typing import Any

import structlog
from celery.beat import Scheduler
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from workers.services.beat_lease import Leadership

log = structlog.get_logger(__name__)

LOOK_S = 0.5


class LeadingScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Ticks while it holds the lease. It keeps no file: each sweep finds what is due by the database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leadership = Leadership(f"{settings.NODE_NAME}:{os.getpid()}:{secrets.token_hex(4)}")

    def setup_schedule(self) -> None:
        self.merge_inplace(self.app.conf.beat_schedule)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        try:
            leads = self._leadership.hold(now_s=time.monotonic())
        except (DatabaseError, InterfaceError) as error:
            log.warning("beat_lease_not_read", reason=type(error).__name__)
            connection.close()
            return LOOK_S
        if not leads:
            return LOOK_S
        due_in_s: float = super().tick(*args, **kwargs)
        return min(due_in_s, LOOK_S)
