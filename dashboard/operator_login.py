"""Where operators log in with their name: with a one-time password too where the account has them, as everybody does."""

from typing import Any

from django import forms
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError

from tenants.services.second_factor import has_second_factor, use_second_factor


class OperatorLoginForm(AdminAuthenticationForm):
    code = forms.CharField(
        label="One-time code",
        required=False,
        max_length=64,
        widget=forms.TextInput(attrs={"autocomplete": "one-time-code"}),
        help_text="Where two-factor log-in is on for the account: of the app, or a recovery code.",
    )

    def clean(self) -> dict[str, Any]:
        """Raises ValidationError; nobody is logged in then."""
        data: dict[str, Any] = super().clean()
        user = self.get_user()
        if user is not None and has_second_factor(user):
            why_not = use_second_factor(user, data.get("code", ""))
            if why_not:
                raise ValidationError({"code": why_not})
        return data
