"""Tell operators that a rollout went back by itself, or waits for one of them."""

from typing import Any

from django.contrib.auth import get_user_model

from inference.rollout_models import Rollout
from workers.services.mail import queue_mail
from workers.services.site_links import site_url


def tell_operators(rollout: Rollout, reason: str) -> None:
    """By mail, if and only if the transaction around commits."""
    _mail(
        rollout,
        f"{rollout.to_version} is rolled back",
        f"Rollout {rollout.pk} goes back to {rollout.from_version} by itself: {reason}",
    )


def ask_operators(rollout: Rollout) -> None:
    """The same way."""
    _mail(
        rollout,
        f"{rollout.to_version} waits for approval",
        f"Rollout {rollout.pk}, made by {rollout.created_by}, has passed all its steps. It is promoted when another operator "
        "approves it.",
    )


def _mail(rollout: Rollout, subject: str, text: str) -> None:
    staff: Any = get_user_model()._default_manager.filter(is_active=True, is_superuser=True).exclude(email="")
    for email in staff.values_list("email", flat=True):
        queue_mail(to=email, subject=subject, text=f"{text}\n\n{site_url(f'/operator/rollouts/{rollout.pk}/')}\n")
