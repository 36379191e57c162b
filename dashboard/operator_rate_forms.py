"""What operators fill in about rates and costs. Fields check shapes; what may be is for the services to say."""

from datetime import UTC
from typing import Any

from django import forms

from dashboard.forms import TEXT, Dollars
from dashboard.operator_forms import SELECT
from headway.countries import COUNTRIES
from headway.currencies import MINOR_DIGITS, USD
from inference.selectors import model_ids

DECIMAL = {**TEXT, "inputmode": "decimal", "autocomplete": "off"}
CHOOSE = [("", "Choose…")]


class Instant(forms.DateTimeField):
    """In UTC, whatever the site's time zone."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.DateTimeInput(attrs={**TEXT, "type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
        super().__init__(widget=widget, **kwargs)

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return None if found is None else found.replace(tzinfo=UTC)


def _day(help_text: str) -> forms.DateField:
    widget = forms.DateInput(attrs={**TEXT, "type": "date"}, format="%Y-%m-%d")
    return forms.DateField(label="Holds from", help_text=help_text, widget=widget)


class TaxRateForm(forms.Form):
    country = forms.ChoiceField(
        label="Country",
        choices=[*CHOOSE, *((code, f"{name} ({code})") for code, name in sorted(COUNTRIES.items(), key=lambda each: each[1]))],
        widget=forms.Select(attrs=SELECT),
    )
    name = forms.CharField(
        label="Name",
        max_length=32,
        initial="VAT",
        help_text="As invoices print it: VAT, MwSt, GST.",
        widget=forms.TextInput(attrs=TEXT),
    )
    percent = forms.CharField(
        label="Percent", max_length=10, help_text="At most two decimals: 19 or 7.75.", widget=forms.TextInput(attrs=DECIMAL)
    )
    effective_from = _day("The first day it holds. The rate of a month's last day holds for all of it.")


class ExchangeRateForm(forms.Form):
    currency = forms.ChoiceField(
        label="Currency",
        choices=[*CHOOSE, *((code, code) for code in sorted(MINOR_DIGITS) if code != USD)],
        widget=forms.Select(attrs=SELECT),
    )
    rate = forms.CharField(
        label="Units for one US dollar",
        max_length=20,
        help_text="At most nine decimals: 0.92 where a dollar is 92 cents of it.",
        widget=forms.TextInput(attrs=DECIMAL),
    )
    effective_from = _day("The first day it holds. The rate of a month's last day holds for all of it.")


class GpuCostForm(forms.Form):
    machine_kind = forms.CharField(
        label="Kind of machine",
        max_length=100,
        required=False,
        help_text="As the fleet's page names it; external of replicas by URL. Or a model:",
        widget=forms.TextInput(attrs={**TEXT, "list": "machine-kinds", "spellcheck": "false", "autocomplete": "off"}),
    )
    model = forms.ChoiceField(
        label="Model",
        required=False,
        help_text="Its replicas, whatever they run on: stands before their machines' cost.",
        widget=forms.Select(attrs=SELECT),
    )
    cost_micros = Dollars(label="US dollars an hour", help_text="That one replica exists; at most six decimals.")
    effective_from = Instant(label="Holds from, UTC", required=False, help_text="Empty: at once.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models = [(model, model) for model in model_ids()]
        self.fields["model"].choices = [("", "None: of a kind of machine"), *models]  # type: ignore[attr-defined]


class ReRatingForm(forms.Form):
    model = forms.ChoiceField(label="Model", widget=forms.Select(attrs=SELECT))
    version = forms.IntegerField(
        label="Price version",
        min_value=1,
        max_value=2**31 - 1,
        help_text="Of the price they are to have: set the right one first.",
        widget=forms.NumberInput(attrs={**TEXT, "min": "1"}),
    )
    starts_at = Instant(label="Requests that ended from, UTC")
    ends_at = Instant(label="And before, UTC", help_text="The first instant that is not of it.")
    tenant = forms.CharField(
        label="Tenant",
        max_length=63,
        required=False,
        help_text="Empty: all.",
        widget=forms.TextInput(attrs={**TEXT, "spellcheck": "false", "autocomplete": "off"}),
    )
    reason = forms.CharField(
        label="Why", max_length=500, help_text="It is a line of the customers' invoices.", widget=forms.TextInput(attrs=TEXT)
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model"].choices = [(model, model) for model in model_ids()]  # type: ignore[attr-defined]
