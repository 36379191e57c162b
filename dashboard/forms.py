"""What customers fill in. Fields check shapes; what may be is for the services to say."""

from collections.abc import Mapping
from typing import Any

from django import forms

from headway.money import MICROS_A_USD

TEXT = {"class": "input"}
OVERLAPS = (("0", "Revoke the old key now"), ("1", "Keep the old key for 1 hour"), ("24", "Keep the old key for 24 hours"))
SCOPES = (
    ("inference", "Inference: call models, look up receipts"),
    ("read_usage", "Read usage: usage, requests and limits by the REST API"),
    ("manage", "Manage: members, keys and settings by the REST API"),
)
TIERS = (("", "As the plan says"), ("interactive", "Interactive"), ("standard", "Standard"), ("batch", "Batch"))
EXPIRIES = (("", "Never"), ("7", "In 7 days"), ("30", "In 30 days"), ("90", "In 90 days"), ("365", "In a year"))


class Lines(forms.CharField):
    """Several values, one a line."""

    widget = forms.Textarea(attrs={"class": "textarea mono", "rows": 2, "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        return tuple(line.strip() for line in (value or "").splitlines() if line.strip())

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else "\n".join(value)


class Dollars(forms.DecimalField):
    """Kept as micro-dollars."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.NumberInput(attrs={**TEXT, "step": "any", "min": "0"})
        super().__init__(min_value=0, max_value=10**9, decimal_places=6, widget=widget, **kwargs)

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return None if found is None else int(found * MICROS_A_USD)

    def prepare_value(self, value: Any) -> Any:
        return value / MICROS_A_USD if isinstance(value, int) else value


def _text(label: str, **kwargs: Any) -> forms.CharField:
    attrs = {**TEXT, **kwargs.pop("attrs", {})}
    return forms.CharField(label=label, widget=forms.TextInput(attrs=attrs), **kwargs)


def _whole(label: str, **kwargs: Any) -> forms.IntegerField:
    attrs = {**TEXT, "min": "1", "inputmode": "numeric"}
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=10**15, widget=forms.NumberInput(attrs=attrs), **kwargs
    )


def _choice(label: str, choices: Any, **kwargs: Any) -> forms.ChoiceField:
    return forms.ChoiceField(label=label, choices=choices, widget=forms.Select(attrs={"class": "select w-full"}), **kwargs)


def _checks(label: str, choices: Any = (), **kwargs: Any) -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(label=label, choices=choices, widget=forms.CheckboxSelectMultiple, **kwargs)


class TenantForm(forms.Form):
    name = _text(
        "Name of your organisation",
        max_length=63,
        help_text="Letters, digits, hyphens and underscores. It is part of your pages' addresses and cannot be changed.",
        attrs={"placeholder": "acme", "autocomplete": "organization", "spellcheck": "false"},
    )


class LimitsForm(forms.Form):
    requests_per_minute = _whole("Requests a minute")
    input_tokens_per_minute = _whole("Input tokens a minute")
    output_tokens_per_minute = _whole("Output tokens a minute")
    concurrent_requests = _whole("Requests at once")
    monthly_budget = Dollars(label="Hard limit a month, US dollars", required=False)


class KeyForm(LimitsForm):
    name = _text("Name", max_length=100, attrs={"placeholder": "production backend"})
    scopes = _checks("Scopes", SCOPES, initial=["inference"])
    allowed_models = _checks("Models", required=False, help_text="None chosen: all models.")
    tier_ceiling = _choice("Most urgent tier", TIERS, required=False)
    expires_in_days = _choice("Expires", EXPIRIES, required=False)
    allowed_addresses = Lines(
        label="Addresses it may be used from",
        required=False,
        help_text="One address or network (CIDR) a line; none: from anywhere.",
    )

    def __init__(self, *args: Any, models: list[str], may_manage: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["allowed_models"].choices = [(model, model) for model in models]  # type: ignore[attr-defined]
        if not may_manage:
            self.fields["scopes"].choices = SCOPES[:2]  # type: ignore[attr-defined]


class RotateForm(forms.Form):
    overlap_h = _choice("The old key", OVERLAPS, initial="24")


class InviteForm(forms.Form):
    email = forms.EmailField(
        label="E-mail address",
        widget=forms.EmailInput(attrs={**TEXT, "autocomplete": "off", "placeholder": "name@example.com"}),
    )
    role = _choice("Role", (), initial="developer")

    def __init__(self, *args: Any, roles: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["role"].choices = [(role, role.capitalize()) for role in roles]  # type: ignore[attr-defined]


class WebhookForm(forms.Form):
    url = forms.URLField(
        label="Address",
        assume_scheme="https",
        widget=forms.URLInput(attrs={**TEXT, "placeholder": "https://example.com/hooks/headway"}),
        help_text="Public addresses only; private and loopback ones are never called.",
    )
    events = _checks("Events")

    def __init__(self, *args: Any, events: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["events"].choices = events  # type: ignore[attr-defined]


class AlertsForm(forms.Form):
    """A field for each kind of event, named by it."""

    def __init__(self, *args: Any, kinds: Mapping[str, str], roles: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind, label in kinds.items():
            self.fields[kind] = _checks(label, [(role, role.capitalize()) for role in roles], required=False)


class SettingsForm(forms.Form):
    time_zone = _text(
        "Time zone",
        help_text="Whose calendar months budgets are counted by, and what charts are drawn in. Such as Europe/Berlin.",
        attrs={"list": "time-zones", "spellcheck": "false"},
    )
