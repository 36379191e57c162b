"""What somebody has to look at every few seconds: beat's task does, and so does every node agent, should Celery be away."""

from inference.services.lost_nodes import look_for_lost_nodes
from inference.services.moving import settle_moves
from inference.services.restarts import advance_restarts
from inference.services.zones import advance_drains


def look_after_fleet() -> None:
    """Each step finds what is due by the database, so that several may do it at once."""
    look_for_lost_nodes()
    settle_moves()
    advance_restarts()
    advance_drains()
