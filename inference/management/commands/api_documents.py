"""manage.py api_documents: the OpenAPI document of /v1 on stdout; --write and --check for docs/api.md."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from headway.command import HeadwayCommand
from inference.gateway.api_page import page
from inference.gateway.fields import USUAL_MAX_CHOICES
from inference.gateway.openapi import document_bytes


class Command(HeadwayCommand):
    help = "Print the OpenAPI document of /v1; --write writes docs/api.md, --check says whether it is up to date."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--write", action="store_true", help="write docs/api.md")
        parser.add_argument("--check", action="store_true", help="fail if docs/api.md is not what would be written")

    def handle(self, *, write: bool, check: bool, **_options: Any) -> None:
        if not write and not check:
            self.stdout.write(document_bytes(USUAL_MAX_CHOICES).decode())
            return
        docs = Path(__file__).parents[3] / "docs"
        made = page((docs / "api_choices.md").read_text())
        path = docs / "api.md"
        if write:
            path.write_text(made)
        if not path.exists() or path.read_text() != made:
            raise CommandError("docs/api.md is out of date: run manage.py api_documents --write")
        self.stdout.write("docs/api.md is up to date")
