"""What operators fill in about evals. Fields check shapes; what may be is for the services to say."""

from typing import Any

from django import forms

from dashboard.forms import TEXT
from dashboard.operator_forms import SELECT
from inference.selectors import model_ids
from inference.services.evals.reads import eval_sets, models_and_versions
from inference.services.evals.runs import DEFAULT_CONCURRENCY, MAX_CONCURRENCY
from inference.services.evals.sets import set_label

MAX_SETS = 200
FORMATS = (("auto", "As it looks"), ("jsonl", "Headway JSONL"), ("gsm8k", "GSM8K"), ("ifeval", "IFEval"))


def _sets() -> list[tuple[str, str]]:
    return [(set_label(each), f"{set_label(each)} ({each.num_cases:,} cases)") for each in eval_sets()[:MAX_SETS]]


def _versions() -> list[Any]:
    """Of each model under its name; a value names both."""
    groups: list[Any] = []
    for model, labels in models_and_versions():
        groups.append(
            (
                model,
                [
                    (f"{model}|", f"{model}: the stable version"),
                    *((f"{model}|{label}", f"{model}: {label}") for label in labels),
                ],
            )
        )
    return groups


class ImportForm(forms.Form):
    name = forms.CharField(
        label="Name",
        max_length=63,
        help_text="Other cases under a known name are its next number.",
        widget=forms.TextInput(attrs=TEXT),
    )
    file = forms.FileField(label="File", help_text="JSON, a case a line", widget=forms.FileInput(attrs={"class": "input"}))
    format = forms.ChoiceField(label="Format", choices=FORMATS, widget=forms.Select(attrs=SELECT))
    limit = forms.IntegerField(
        label="The first so many cases", required=False, min_value=1, widget=forms.NumberInput(attrs={**TEXT, "min": "1"})
    )
    description = forms.CharField(label="Description", required=False, max_length=500, widget=forms.TextInput(attrs=TEXT))


class RunForm(forms.Form):
    eval_set = forms.ChoiceField(label="Eval set", widget=forms.Select(attrs=SELECT))
    version = forms.ChoiceField(label="Model and version", widget=forms.Select(attrs=SELECT))
    concurrency = forms.IntegerField(
        label="Requests at once",
        min_value=1,
        max_value=MAX_CONCURRENCY,
        initial=DEFAULT_CONCURRENCY,
        widget=forms.NumberInput(attrs={**TEXT, "min": "1", "max": str(MAX_CONCURRENCY)}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["eval_set"].choices = _sets()  # type: ignore[attr-defined]
        self.fields["version"].choices = _versions()  # type: ignore[attr-defined]

    def model_and_version(self) -> tuple[str, str]:
        model, _, version = self.cleaned_data["version"].rpartition("|")
        return model, version


class Percent(forms.FloatField):
    """Kept as a share, 0 to 1."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.NumberInput(attrs={**TEXT, "step": "any", "min": "0", "max": "100"})
        super().__init__(min_value=0, max_value=100, widget=widget, **kwargs)

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return None if found is None else found / 100


class GateForm(forms.Form):
    model = forms.ChoiceField(label="Model", widget=forms.Select(attrs=SELECT))
    eval_set = forms.ChoiceField(label="Eval set", widget=forms.Select(attrs=SELECT))
    min_score = Percent(label="Score at least, %", required=False)
    max_drop = Percent(label="At most so many points below the stable version", required=False)
    confidence = Percent(
        label="Confidence, %", help_text="Fewer cases, or a higher confidence: more often not enough is known.", initial=95
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model"].choices = [(model, model) for model in model_ids()]  # type: ignore[attr-defined]
        self.fields["eval_set"].choices = _sets()  # type: ignore[attr-defined]
