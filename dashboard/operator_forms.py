"""What operators fill in about money. Fields check shapes; what may be is for the services to say."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms

from billing.services.prices import TIERS
from dashboard.forms import TEXT, Dollars
from headway.currencies import MINOR_DIGITS
from inference.selectors import model_ids

SELECT = {"class": "select w-full"}
PER_MILLION = "US dollars per million tokens"


class PriceForm(forms.Form):
    model = forms.ChoiceField(label="Model", widget=forms.Select(attrs=SELECT))
    tier = forms.ChoiceField(
        label="Tier",
        required=False,
        choices=[("", "All that have no price of their own"), *((tier, tier.capitalize()) for tier in TIERS)],
        widget=forms.Select(attrs=SELECT),
    )
    input_micros = Dollars(label="Input", help_text=PER_MILLION)
    cached_micros = Dollars(label="Cached input", required=False, help_text=f"{PER_MILLION}; empty: as input")
    output_micros = Dollars(label="Output", help_text=PER_MILLION)
    effective_from = forms.DateTimeField(
        label="Holds from, UTC",
        required=False,
        help_text="Empty: at once.",
        widget=forms.DateTimeInput(attrs={**TEXT, "type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model"].choices = [(model, model) for model in model_ids()]  # type: ignore[attr-defined]

    def clean_effective_from(self) -> Any:
        at = self.cleaned_data["effective_from"]
        return at.replace(tzinfo=UTC) if at is not None else None


class GrantForm(forms.Form):
    amount_micros = Dollars(label="Amount, US dollars")
    kind = forms.ChoiceField(
        label="Kind",
        choices=[("prepaid", "Paid in advance"), ("promotion", "Promotion"), ("goodwill", "Goodwill")],
        widget=forms.Select(attrs=SELECT),
    )
    reason = forms.CharField(
        label="What for", max_length=500, help_text="The customer reads it.", widget=forms.TextInput(attrs=TEXT)
    )
    reference = forms.CharField(
        label="Reference",
        max_length=200,
        required=False,
        help_text="Of the payment, say: given twice, it is one grant.",
        widget=forms.TextInput(attrs=TEXT),
    )
    expires_on = forms.DateField(
        label="Good until the end of", required=False, widget=forms.DateInput(attrs={**TEXT, "type": "date"}, format="%Y-%m-%d")
    )

    def expires_at(self) -> datetime | None:
        """The first instant, in UTC, at which it is not good any more."""
        day = self.cleaned_data["expires_on"]
        return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1) if day else None


class DebitForm(forms.Form):
    amount_micros = Dollars(label="Amount, US dollars")
    reason = forms.CharField(
        label="Why", max_length=500, help_text="The customer reads it.", widget=forms.TextInput(attrs=TEXT)
    )
    grant = forms.ChoiceField(
        label="Of which",
        required=False,
        help_text="What is paid back is taken of its own grant.",
        widget=forms.Select(attrs=SELECT),
    )
    reference = forms.CharField(
        label="Reference",
        max_length=200,
        required=False,
        help_text="Of what it is taken for: given twice, it is taken once.",
        widget=forms.TextInput(attrs=TEXT),
    )

    def __init__(self, *args: Any, grants: list[Any], **kwargs: Any) -> None:
        """`grants`: those that were paid in advance and are not over."""
        super().__init__(*args, **kwargs)
        self.grants = {str(grant.id): grant for grant in grants}
        paid = [(grant_id, f"{grant.reason}: paid in advance, is paid back") for grant_id, grant in self.grants.items()]
        self.fields["grant"].choices = [("", "What usage would use first"), *paid]  # type: ignore[attr-defined]


class AdjustmentForm(forms.Form):
    """Of a request, or (`of_nothing`) goodwill for nothing in particular."""

    tenant = forms.CharField(label="Tenant", max_length=63, widget=forms.TextInput(attrs=TEXT))
    amount_usd = forms.CharField(
        label="Amount, US dollars",
        max_length=40,
        help_text="With a minus it is taken off: -0.25. At most twelve decimals.",
        widget=forms.TextInput(attrs={**TEXT, "inputmode": "decimal"}),
    )
    kind = forms.ChoiceField(
        label="Kind", choices=[("correction", "Correction"), ("goodwill", "Goodwill")], widget=forms.Select(attrs=SELECT)
    )
    reason = forms.CharField(
        label="Why", max_length=500, help_text="It is a line of the customer's invoice.", widget=forms.TextInput(attrs=TEXT)
    )

    def __init__(self, *args: Any, of_nothing: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if of_nothing:
            self.fields.pop("kind")
        else:
            self.fields.pop("tenant")


class Amount(forms.DecimalField):
    """Of a currency; kept as minor units."""

    def __init__(self, *, currency: str, **kwargs: Any) -> None:
        self._digits = MINOR_DIGITS[currency]
        widget = forms.NumberInput(attrs={**TEXT, "step": "any", "min": "0"})
        super().__init__(min_value=0, max_value=10**12, decimal_places=self._digits, widget=widget, **kwargs)

    def clean(self, value: Any) -> Any:
        found: Decimal | None = super().clean(value)
        return None if found is None else int(found.scaleb(self._digits))


class PaymentForm(forms.Form):
    reference = forms.CharField(
        label="Reference", max_length=200, help_text="What the bank calls it; counted once.", widget=forms.TextInput(attrs=TEXT)
    )

    def __init__(self, *args: Any, currency: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["amount"] = Amount(
            currency=currency, label=f"Amount, {currency}", required=False, help_text="Empty: all that is due."
        )


class RefundForm(forms.Form):
    reference = forms.CharField(
        label="Reference", max_length=200, help_text="What the bank calls it; counted once.", widget=forms.TextInput(attrs=TEXT)
    )
    paid_on = forms.DateField(
        label="Paid out on", required=False, help_text="Empty: today.", widget=forms.DateInput(attrs={**TEXT, "type": "date"})
    )

    def __init__(self, *args: Any, currency: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["amount"] = Amount(
            currency=currency, label=f"Amount, {currency}", required=False, help_text="Empty: all that is owed back."
        )


class CreditNoteForm(forms.Form):
    reason = forms.CharField(
        label="Why", max_length=300, help_text="It is printed on the credit note.", widget=forms.TextInput(attrs=TEXT)
    )

    def __init__(self, *args: Any, currency: str, lines: list[Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names = {f"line_{line.position}": line for line in lines}
        for name, line in self.names.items():
            self.fields[name] = Amount(currency=currency, label=f"{line.position}. {line.label}: {line.amount}", required=False)

    def amounts(self) -> dict[int, int]:
        """By a line's position; lines without an amount are left out."""
        found = {line.position: self.cleaned_data[name] for name, line in self.names.items()}
        return {position: minor for position, minor in found.items() if minor}
