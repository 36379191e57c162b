"""The one module that imports typst: JSON in, the bytes of a PDF out.

Only the fonts that come with typst (and those of HEADWAY_INVOICE_FONTS) are used, never the machine's, and the document's
time is given: the same data makes the same bytes on any machine.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import typst
from django.conf import settings

from billing.errors import DocumentFailed

log = structlog.get_logger(__name__)

TEMPLATE = Path(__file__).parent / "typst" / "invoice.typ"
REPORT = Path(__file__).parent / "typst" / "report.typ"
ACCESSIBLE: Any = "ua-1"
_MISSING_GLYPH = re.compile(r'text `"(.)[^`]*` could not be displayed')
_PROBE = b'#set document(title: "probe")\n#set text(font: "Libertinus Serif")\n#sys.inputs.text'


def set_pdf(data: Mapping[str, Any], *, at: datetime, template: Path = TEMPLATE) -> bytes:
    """A tagged PDF/UA-1. Raises DocumentFailed.

    Where a text has characters that no font has, they are boxes, and the document is tagged but not PDF/UA (which forbids it).
    """
    inputs = {"data": json.dumps(data, sort_keys=True)}
    try:
        return _compiled(template, inputs, at, [ACCESSIBLE])
    except typst.TypstError as error:
        if not _MISSING_GLYPH.search(error.message):
            raise DocumentFailed(f"typst could not set {data.get('number')}: {error.message[:300]}") from error
        log.warning("document_lacks_glyphs", number=data.get("number"), reason=error.message[:200])
    try:
        return _compiled(template, inputs, at, [])
    except typst.TypstError as error:
        raise DocumentFailed(f"typst could not set {data.get('number')}: {error.message[:300]}") from error


def unprintable(text: str) -> str:
    """The first character that no font here has; a blank: all can be printed."""
    try:
        typst.compile(_PROBE, pdf_standards=[ACCESSIBLE], sys_inputs={"text": text}, **_fonts())
    except typst.TypstError as error:
        found = _MISSING_GLYPH.search(error.message)
        return found.group(1) if found else ""
    return ""


@cache
def made_with() -> str:
    """typst's version and the template's hash: the same make the same bytes."""
    return f"typst {version('typst')}, template {hashlib.sha256(TEMPLATE.read_bytes()).hexdigest()[:16]}"


def _compiled(template: Path, inputs: dict[str, str], at: datetime, standards: list[Any]) -> bytes:
    made = typst.compile(
        template, format="pdf", sys_inputs=inputs, timestamp=int(at.timestamp()), pdf_standards=standards, **_fonts()
    )
    assert isinstance(made, bytes), "one PDF"
    return made


def _fonts() -> dict[str, Any]:
    extra = [settings.INVOICE_FONTS] if settings.INVOICE_FONTS else []
    return {"ignore_system_fonts": True, "font_paths": extra}
