"""What pages add to the API: files that are set as pages show them."""

from typing import Any

from dashboard.api.report_pdf import ReportPdf

OF_OPERATORS: dict[str, Any] = {
    "reports/pdf/": ReportPdf,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""
