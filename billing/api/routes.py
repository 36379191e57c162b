"""What billing adds to the API."""

from typing import Any

from billing.api import (
    account,
    exports,
    invoices,
    operator_checks,
    operator_invoices,
    operator_months,
    operator_prices,
    operator_rates,
    operator_reports,
    operator_tenants,
)

ONE = "billing/invoices/<slug:number>/"

OF_TENANT = {
    "billing/account/": account.Account,
    "billing/next-invoice/": account.NextInvoice,
    "billing/balance/": account.Balance,
    "billing/grants/": account.Grants,
    "billing/top-up/": account.TopUps,
    "billing/invoices/": invoices.Invoices,
    ONE: invoices.OneInvoice,
    ONE + "lines/": invoices.InvoiceLines,
    ONE + "lines/<id:position>/requests/": invoices.LineRequests,
    ONE + "pdf/": invoices.InvoicePdf,
    ONE + "csv/": invoices.InvoiceCsv,
    "billing/credit-notes/": invoices.CreditNotes,
    "billing/credit-notes/<slug:note>/pdf/": invoices.CreditNotePdf,
    "prices/": account.Prices,
    "exports/": exports.Exports,
    "exports/<uuid:export_id>/": exports.OneExport,
    "exports/<uuid:export_id>/cancel/": exports.CancelExport,
    "exports/<uuid:export_id>/file/": exports.ExportFile,
}
"""Below `tenants/<tenant>/`: every one is a TenantView (a test walks them all)."""

_TENANT, _INVOICE = "tenants/<slug:tenant>/", "invoices/<slug:number>/"

OF_OPERATORS: dict[str, Any] = {
    "tenants/": operator_tenants.Tenants,
    _TENANT: operator_tenants.OneTenant,
    _TENANT + "suspend/": operator_tenants.Suspend,
    _TENANT + "resume/": operator_tenants.Resume,
    _TENANT + "plan/": operator_tenants.Plan,
    _TENANT + "grants/": operator_tenants.Grants,
    _TENANT + "debits/": operator_tenants.Debits,
    "prices/": operator_prices.Prices,
    "prices/dry-run/": operator_prices.PriceDryRun,
    "re-ratings/": operator_rates.ReRatings,
    "re-ratings/dry-run/": operator_rates.ReRatingDryRun,
    "re-ratings/<id:run_id>/": operator_rates.OneReRating,
    "tax-rates/": operator_rates.TaxRates,
    "exchange-rates/": operator_rates.ExchangeRates,
    "gpu-costs/": operator_rates.GpuCosts,
    "invoices/": operator_invoices.Invoices,
    _INVOICE: operator_invoices.OneInvoice,
    _INVOICE + "lines/": operator_invoices.InvoiceLines,
    _INVOICE + "lines/<id:position>/requests/": operator_invoices.LineRequests,
    _INVOICE + "pdf/": operator_invoices.InvoicePdf,
    _INVOICE + "csv/": operator_invoices.InvoiceCsv,
    _INVOICE + "payments/": operator_invoices.Payments,
    _INVOICE + "refunds/": operator_invoices.Refunds,
    _INVOICE + "credit-notes/": operator_invoices.CreditNotes,
    _INVOICE + "void/": operator_invoices.Void,
    _INVOICE + "write-off/": operator_invoices.WriteOff,
    "credit-notes/<slug:note>/pdf/": operator_invoices.CreditNotePdf,
    "months/<slug:month>/": operator_months.OneMonth,
    "closings/": operator_months.Closings,
    "closings/<id:run_id>/": operator_months.OneClosing,
    "reports/usage/": operator_reports.UsageReport,
    "reports/usage/csv/": operator_reports.UsageReportCsv,
    "reports/margins/": operator_reports.MarginReport,
    "reports/margins/csv/": operator_reports.MarginReportCsv,
    "exports/": exports.LedgerExports,
    "exports/<uuid:export_id>/": exports.OneLedgerExport,
    "exports/<uuid:export_id>/cancel/": exports.CancelLedgerExport,
    "exports/<uuid:export_id>/file/": exports.LedgerExportFile,
    "reconciliations/": operator_checks.Reconciliations,
    "reconciliations/<id:run_id>/": operator_checks.OneReconciliation,
    "adjustments/": operator_checks.Adjustments,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""
