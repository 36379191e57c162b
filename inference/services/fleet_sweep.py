"""What somebody has to look at every few seconds: beat's task does, and so does every node agent, should Celery be away."""

from collections.abc import Callable

import structlog
from django.db import InterfaceError, OperationalError

from inference.services.lost_nodes import look_for_lost_nodes
from inference.services.moving import settle_moves
from inference.services.restarts import advance_restarts
from inference.services.zones import advance_drains

log = structlog.get_logger(__name__)
STEPS: tuple[Callable[[], object], ...] = (look_for_lost_nodes, settle_moves, advance_restarts, advance_drains)


def look_after_fleet() -> None:
    """Each step finds what is due by the database, so that several may do it at once. What one runs into keeps no other from
    its turn. Raises what says that the database is away."""
    for step in STEPS:
        try:
            step()
        except (OperationalError, InterfaceError):
            raise
        except Exception:  # the sweep is a boundary: a fault in one step must not end the others for good
            log.exception("fleet_step_failed", step=step.__name__)
