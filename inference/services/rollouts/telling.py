"""Tell operators that a rollout went back by itself."""

from typing import Any

from django.contrib.auth import get_user_model

from inference.rollout_models import Rollout
from workers.services.mail import queue_mail
from workers.services.site_links import site_url


def tell_operators(rollout: Rollout, reason: str) -> None:
    """By mail, if and only if the transaction around commits."""
    staff: Any = get_user_model()._default_manager.filter(is_active=True, is_superuser=True).exclude(email="")
    for email in staff.values_list("email", flat=True):
        queue_mail(
            to=email,
            subject=f"{rollout.to_version} is rolled back",
            text=f"Rollout {rollout.pk} goes back to {rollout.from_version} by itself: {reason}\n\n"
            f"{site_url(f'/operator/rollouts/{rollout.pk}/')}\n",
        )
