"""What operators fill in about releases. Fields check shapes; what may be is for the services to say."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import forms

from dashboard.forms import TEXT, Dollars
from inference.services.rollouts.operating import DEFAULT_WINDOW_S
from inference.services.rollouts.plans import DEFAULT_SAMPLES, DEFAULT_SHARES_PPM, DEFAULT_STEP_S, gates_of

SELECT = {"class": "select w-full"}
PPM_A_PERCENT = 10_000
RATIOS = {
    "ttft_p50_ratio": "First token, median: at most times the stable version's",
    "ttft_p95_ratio": "First token, 95 %: at most times",
    "inter_token_p50_ratio": "Between tokens, median: at most times",
    "inter_token_p95_ratio": "Between tokens, 95 %: at most times",
}
SHARES = {
    "max_error_rise": "Failed attempts: more by at most, per cent",
    "max_length_rise": "Answers that are too long: more by at most, per cent",
}


class Percents(forms.CharField):
    """Numbers of per cent with commas between; kept as millionths."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            found = [
                Decimal(part.strip().removesuffix("%").strip()) * PPM_A_PERCENT for part in text.split(",") if part.strip()
            ]
        except ArithmeticError:
            raise forms.ValidationError("Give per cents with commas between: 1, 5, 25, 50") from None
        if not all(each.is_finite() and each == each.to_integral_value() and 0 < each < 10**6 for each in found):
            raise forms.ValidationError("Each is above 0 and below 100 per cent, with at most four decimals")
        return [int(each) for each in found]


def _number(**kwargs: Any) -> Any:
    return forms.IntegerField(widget=forms.NumberInput(attrs=TEXT), **kwargs)


def _decimal(**kwargs: Any) -> Any:
    return forms.FloatField(widget=forms.NumberInput(attrs={**TEXT, "step": "any"}), required=False, **kwargs)


class RolloutForm(forms.Form):
    to = forms.ChoiceField(label="Version", widget=forms.Select(attrs=SELECT))
    steps = Percents(
        label="Shares of the traffic, per cent",
        initial=", ".join(f"{share / PPM_A_PERCENT:g}" for share in DEFAULT_SHARES_PPM),
        widget=forms.TextInput(attrs=TEXT),
    )
    step_s = _number(label="Each lasts at least, seconds", min_value=0, initial=DEFAULT_STEP_S)
    min_samples = _number(label="Requests of the new version at each, at least", min_value=0, initial=DEFAULT_SAMPLES)
    shadow_percent = Percents(
        label="Mirror before that, per cent",
        required=False,
        help_text="Of live requests, after their answers; nobody gets what the new version says to them.",
        widget=forms.TextInput(attrs=TEXT),
    )
    shadow_micros = Dollars(label="Mirrored requests cost at most, US dollars", required=False)
    window_s = _number(label="Keep the old version warm, seconds", min_value=0, initial=DEFAULT_WINDOW_S)
    kept_warm = _number(label="Replicas of it", min_value=0, required=False, help_text="Empty: as many as serve now.")
    scheduled_for = forms.DateTimeField(
        label="Start at, UTC",
        required=False,
        help_text="Empty: when you start it.",
        widget=forms.DateTimeInput(attrs={**TEXT, "type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def __init__(self, *args: Any, versions: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["to"].choices = [(label, label) for label in versions]  # type: ignore[attr-defined]
        defaults = gates_of({})
        for name, label in RATIOS.items():
            self.fields[name] = _decimal(label=label, min_value=1, initial=getattr(defaults, name), help_text="Empty: no gate.")
        for name, label in SHARES.items():
            initial = 100 * getattr(defaults, name)
            self.fields[name] = _decimal(label=label, min_value=0, max_value=100, initial=initial, help_text="Empty: no gate.")

    def clean_shadow_percent(self) -> list[int]:
        found: list[int] = self.cleaned_data["shadow_percent"]
        if len(found) > 1:
            raise forms.ValidationError("Give one per cent: mirrored requests have one share")
        return found

    def schedule(self) -> dict[str, Any]:
        asked = self.cleaned_data
        step = {"min_duration_s": asked["step_s"], "min_samples": asked["min_samples"]}
        shadow = None
        if asked["shadow_percent"] or asked["shadow_micros"]:
            share = asked["shadow_percent"][0] if asked["shadow_percent"] else 0
            shadow = {"share_ppm": share, "max_usd_micros": asked["shadow_micros"] or 0, **step}
        return {"steps": [{"share_ppm": share, **step} for share in asked["steps"]], "shadow": shadow}

    def gates(self) -> dict[str, Any]:
        asked = self.cleaned_data
        ratios = {name: asked[name] for name in RATIOS}
        return ratios | {name: None if asked[name] is None else asked[name] / 100 for name in SHARES}

    def starts_at(self) -> datetime | None:
        at: datetime | None = self.cleaned_data["scheduled_for"]
        return at.replace(tzinfo=UTC) if at is not None else None


class RetireForm(forms.Form):
    on = forms.DateField(label="Its last day, UTC", widget=forms.DateInput(attrs={**TEXT, "type": "date"}, format="%Y-%m-%d"))

    def at(self) -> datetime:
        day = self.cleaned_data["on"]
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
