from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from inference.evals.readers import FORMATS
from inference.services.evals.sets import import_eval_set, set_label


class Command(HeadwayCommand):
    help = "Read an eval set from a file of JSON lines; prints it as other commands take it, such as gsm8k@1."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--name", required=True, help="other cases under a known name are its next number")
        parser.add_argument("--format", default="auto", choices=["auto", *FORMATS])
        parser.add_argument("--limit", type=int, help="the first so many cases")
        parser.add_argument("--description", default="")

    def handle(
        self,
        *,
        file: Path,
        name: str,
        format: str,  # noqa: A002
        limit: int | None,
        description: str,
        json: bool,
        **_options: Any,
    ) -> None:
        try:
            with file.open("rb") as lines:
                made = import_eval_set(
                    name=name, lines=lines, actor=actor(), format=format, limit=limit, description=description
                )
        except OSError as error:
            raise InvalidInput(f"{file}: {error.strerror or type(error).__name__}", param="file") from None
        label, found = set_label(made.eval_set), made.eval_set
        if not made.is_new:
            self.say(f"these cases are there already, as {label}")
        data = {"eval_set": label, "cases": found.num_cases, "digest": found.digest, "is_new": made.is_new}
        self.print_result(label, data, as_json=json)
