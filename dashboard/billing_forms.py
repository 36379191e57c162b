"""Who is billed, as customers fill it in. What may be is for the service to say."""

from collections.abc import Sequence
from typing import Any

from django import forms

from billing.services.own_account import currencies_on_offer
from dashboard.forms import TEXT, Dollars, Lines
from headway.countries import COUNTRIES

SELECT = {"class": "select w-full"}


def _text(label: str, *, max_length: int, **attrs: str) -> forms.CharField:
    return forms.CharField(label=label, max_length=max_length, required=False, widget=forms.TextInput(attrs={**TEXT, **attrs}))


class AccountForm(forms.Form):
    legal_name = _text("Legal name", max_length=200, autocomplete="organization")
    address = Lines(
        label="Address",
        required=False,
        max_length=700,
        help_text="Without the country; at most six lines.",
        widget=forms.Textarea(attrs={"class": "textarea", "rows": 3, "autocomplete": "street-address"}),
    )
    country = forms.ChoiceField(
        label="Country",
        required=False,
        choices=[("", "Choose…"), *sorted(COUNTRIES.items(), key=lambda item: item[1])],
        widget=forms.Select(attrs={**SELECT, "autocomplete": "country"}),
    )
    tax_id = _text("VAT or tax number", max_length=40, spellcheck="false")
    email = forms.EmailField(
        label="Billing e-mail",
        required=False,
        help_text="Invoices are mailed to it.",
        widget=forms.EmailInput(attrs={**TEXT, "autocomplete": "email"}),
    )
    purchase_order = _text("Purchase order", max_length=64)
    currency = forms.ChoiceField(label="Currency of invoices", widget=forms.Select(attrs=SELECT))

    def __init__(self, *args: Any, offered: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["currency"].choices = [(code, code) for code in offered]  # type: ignore[attr-defined]


def account_form(account: Any, time_zone: str, posted: Any = None) -> AccountForm:
    initial = {name: getattr(account, name) for name in AccountForm.base_fields}
    return AccountForm(posted, initial=initial, offered=currencies_on_offer(account, time_zone))


class TopUpForm(forms.Form):
    is_enabled = forms.BooleanField(label="Fill the balance by itself, once that is offered", required=False)
    threshold_micros = Dollars(label="When less is left than, US dollars")
    amount_micros = Dollars(label="By, US dollars")
    monthly_cap_micros = Dollars(label="But in a month by no more than, US dollars")


def top_up_form(top_up: Any, posted: Any = None) -> TopUpForm:
    """`top_up` None: it was never set."""
    initial = {name: getattr(top_up, name) for name in TopUpForm.base_fields} if top_up is not None else {}
    return TopUpForm(posted, initial=initial, auto_id="top_up_%s")
