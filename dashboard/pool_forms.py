"""What operators set of a pool's scaling. Fields check shapes; what may be is for the service to say."""

from typing import Any

from django import forms

from dashboard.forms import TEXT
from inference.services.pools import SCALING


def _number(label: str, help_text: str = "") -> forms.IntegerField:
    return forms.IntegerField(label=label, min_value=0, help_text=help_text, widget=forms.NumberInput(attrs=TEXT))


class PoolForm(forms.Form):
    is_autoscaled = forms.BooleanField(label="Autoscaled", required=False, help_text="Off: the number is set by hand.")
    min_replicas = _number("Least", "0: it may go to zero, and a request wakes it.")
    max_replicas = _number("Most")
    warm_replicas = _number("Warm", "Beside those that serve, ready to serve at once.")
    idle_before_zero_s = _number("Idle before zero, seconds")
    hold_limit_s = _number("Hold limit, seconds", "So long a request waits for a start.")

    @classmethod
    def of(cls, pool: Any, **more: Any) -> "PoolForm":
        return cls(initial={name: getattr(pool, name) for name in SCALING}, auto_id=f"id_{pool.pk}_%s", **more)
