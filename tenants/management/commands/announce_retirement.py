from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from tenants.services.alerts import announce_retirement, announce_version_retirement


class Command(HeadwayCommand):
    help = (
        "Tell every tenant with webhooks that a model will go (event model.retiring); prints how many were told. "
        "With --version: that version of it goes on the day, and those who stay on it are told."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="its public id")
        parser.add_argument("--version", default="", help="such as v1: this version alone")
        parser.add_argument("--on", required=True, help="the day it goes, YYYY-MM-DD (UTC)")

    def handle(self, *, model: str, version: str, on: str, json: bool, **_options: Any) -> None:
        try:
            retires_at = datetime.strptime(on, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            raise InvalidInput(f"--on is a day such as 2027-01-31: {on!r}", param="--on") from None
        if version:
            told = announce_version_retirement(model=model, version=version, retires_at=retires_at, actor=actor())
        else:
            told = announce_retirement(model=model, retires_at=retires_at, actor=actor())
        self.print_result(f"{told} tenants are told", {"told": told}, as_json=json)
