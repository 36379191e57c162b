"""What billing adds to the API."""

from billing.api import account, invoices

ONE = "billing/invoices/<slug:number>/"

OF_TENANT = {
    "billing/account/": account.Account,
    "billing/next-invoice/": account.NextInvoice,
    "billing/balance/": account.Balance,
    "billing/grants/": account.Grants,
    "billing/invoices/": invoices.Invoices,
    ONE: invoices.OneInvoice,
    ONE + "lines/": invoices.InvoiceLines,
    ONE + "lines/<id:position>/requests/": invoices.LineRequests,
    ONE + "pdf/": invoices.InvoicePdf,
    ONE + "csv/": invoices.InvoiceCsv,
    "billing/credit-notes/": invoices.CreditNotes,
    "billing/credit-notes/<slug:note>/pdf/": invoices.CreditNotePdf,
    "prices/": account.Prices,
}
"""Below `tenants/<tenant>/`: every one is a TenantView (a test walks them all)."""
