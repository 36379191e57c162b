"""A service's refusal as a form's error: beside the field it names, else above them all."""

from typing import Any

from django import forms

from headway.errors import HeadwayError

_FIELDS = {"monthly_budget_micros": "monthly_budget", "amount": "amount_micros", "expires_at": "expires_on"}
_FIELDS |= {"cost": "cost_micros", "threshold": "threshold_micros", "monthly_cap": "monthly_cap_micros"}
"""What services call otherwise than forms."""


def tell(form: forms.Form, error: HeadwayError) -> None:
    named = _FIELDS.get(error.param or "", error.param)
    field: Any = named if named in form.fields else None
    text = error.message[:1].upper() + error.message[1:]
    form.add_error(field, text)
