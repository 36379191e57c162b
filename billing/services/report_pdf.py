"""Reports as PDF: made when they are asked for, and not kept."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from billing import typesetting


def report_pdf(data: Mapping[str, Any], *, at: datetime) -> bytes:
    """`data`: as billing/typst/report.typ prints it. The same data and time make the same bytes. Raises DocumentFailed."""
    return typesetting.set_pdf(data, at=at, template=typesetting.REPORT)
