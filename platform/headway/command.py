"""The base of our commands: the result alone on stdout (a line, or `--json`), errors in one line on stderr with exit code 1."""

import getpass
import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, DataError, OperationalError, ProgrammingError

from headway.errors import HeadwayError

INTERRUPTED = 130
"""The exit code, as shells have it."""


class OneLineParser(CommandParser):
    """Argument errors are errors like all others: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)  # noqa: T201
        raise SystemExit(1)


def actor() -> str:
    """Who the audit log names for a command: the system's user."""
    try:
        return f"command:{getpass.getuser()}"
    except (KeyError, OSError):  # a uid without a name
        return "command"


class HeadwayCommand(BaseCommand):
    requires_system_checks: list[str] = []
    interrupted = "interrupted"
    """What Ctrl-C is answered with: one that has begun something says whether it goes on."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = OneLineParser(prog=f"{prog_name.rsplit('/', 1)[-1]} {subcommand}", description=self.help or None, **kwargs)
        self.add_base_argument(parser, "--traceback", action="store_true", help="show where an error comes from")
        self.add_base_argument(parser, "--no-color", action="store_true", help="no colours")
        self.add_base_argument(parser, "--force-color", action="store_true", help="colours in any case")
        self.add_base_argument(parser, "-v", "--verbosity", type=int, default=1, choices=[0, 1, 2, 3], help="how much to say")
        self.add_base_argument(parser, "--settings", help="Django settings module")
        self.add_base_argument(parser, "--pythonpath", help="a folder to put on the Python path")
        self.add_base_argument(parser, "--skip-checks", action="store_true", help="skip Django's system checks")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_arguments(parser)
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            raise CommandError(self.interrupted, returncode=INTERRUPTED) from None
        except HeadwayError as error:
            raise CommandError(error.message) from error
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(_database_sentence(error)) from error
        except (DataError, OverflowError, UnicodeError) as error:  # numbers and texts that no database takes
            raise CommandError(f"an argument cannot be taken as it is: {str(error).strip().splitlines()[0]}") from error

    def print_result(self, line: str, data: Mapping[str, Any], *, as_json: bool) -> None:
        self.stdout.write(json.dumps(data) if as_json else line)

    def say(self, line: str) -> None:
        """Progress and remarks: stderr, so that stdout stays the result."""
        self.stderr.write(line, ending="\n")


def _database_sentence(error: DatabaseError) -> str:
    text = str(error).strip().splitlines()[0]
    if "no such table" in text or "does not exist" in text:
        return f"the database is not set up: run manage.py migrate ({text})"
    return f"the database does not answer: {text}"
