from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.evals.gates import remove_gate, set_gate
from inference.services.evals.sets import eval_set_named, set_label


class Command(HeadwayCommand):
    help = "Make an eval set a gate of a model's releases, change what it asks, or take it away; prints what holds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("eval_set", help="its name, or name@number")
        parser.add_argument("--model", required=True, help="the model's public id")
        parser.add_argument("--min-score", type=float, help="a share, 0 to 1, that the score is not below")
        parser.add_argument("--max-drop", type=float, help="a share, 0 to 1, that it may be below the stable version's")
        parser.add_argument("--confidence", type=float, default=0.95, help="of both, one-sided (default 0.95)")
        parser.add_argument("--remove", action="store_true")

    def handle(
        self,
        *,
        eval_set: str,
        model: str,
        min_score: float | None,
        max_drop: float | None,
        confidence: float,
        remove: bool,
        json: bool,
        **_options: Any,
    ) -> None:
        found = eval_set_named(eval_set)
        label = set_label(found)
        if remove:
            remove_gate(model=model, eval_set=found, actor=actor())
            self.print_result(f"{label} is no gate of {model} any more", {"eval_set": label, "model": model}, as_json=json)
            return
        set_gate(model=model, eval_set=found, actor=actor(), min_score=min_score, max_drop=max_drop, confidence=confidence)
        asks = {"min_score": min_score, "max_drop": max_drop, "confidence": confidence}
        shown = ", ".join(f"{name} {value:g}" for name, value in asks.items() if value is not None)
        self.print_result(f"{label} is a gate of {model}: {shown}", {"eval_set": label, "model": model, **asks}, as_json=json)
