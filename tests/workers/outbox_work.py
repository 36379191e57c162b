"""What workers do with the outbox, done here."""

from django.utils import timezone

from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out


def work(kind: str, at_most: int = 50) -> int:
    """Every entry of the kind that is due, until none is. Returns how many there were."""
    done = 0
    while entry := OutboxEntry.objects.filter(kind=kind, done_at=None, given_up_at=None, due_at__lte=timezone.now()).first():
        carry_out(entry.id, EFFECTS)
        done += 1
        assert done <= at_most, "it ends"
    return done
