from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from billing.services.documents import invoice_pdf, invoice_pdf_made_again
from headway.command import HeadwayCommand


class Command(HeadwayCommand):
    help = "Write an invoice's PDF to a file: the bytes that were issued."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", help="such as INV-000007")
        parser.add_argument("--out", required=True, metavar="FILE", help="where to write it")
        parser.add_argument("--again", action="store_true", help="set it anew, and fail if it is not the same to the byte")

    def handle(self, *, number: str, out: str, again: bool, json: bool, **_options: Any) -> None:
        pdf = invoice_pdf(number)
        if again:
            pdf = invoice_pdf_made_again(number)
        try:
            Path(out).write_bytes(pdf)
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror}") from error
        self.print_result(
            f"{number}: {len(pdf)} bytes in {out}", {"number": number, "bytes": len(pdf), "out": out}, as_json=json
        )
