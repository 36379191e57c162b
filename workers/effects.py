"""Which service carries out which kind of outbox entry."""

from billing.services.closing_runs import KIND as CLOSING
from billing.services.closing_runs import LEASE_S as CLOSING_LEASE_S
from billing.services.closing_runs import carry_on as carry_on_closing
from billing.services.export_work import LEASE_S as EXPORT_LEASE_S
from billing.services.export_work import carry_on as carry_on_export
from billing.services.exports import KIND as EXPORT
from billing.services.invoices import KIND as INVOICE
from billing.services.presenting import carry_out as present_document
from billing.services.re_rating_runs import KIND as RE_RATING
from billing.services.re_rating_runs import LEASE_S as RE_RATING_LEASE_S
from billing.services.re_rating_runs import carry_on as carry_on_re_rating
from billing.services.reconcile_runs import KIND as RECONCILIATION
from billing.services.reconcile_runs import LEASE_S as RECONCILIATION_LEASE_S
from billing.services.reconcile_runs import carry_out as reconcile
from inference.services.evals.runs import KIND as EVAL
from inference.services.evals.working import LEASE_S as EVAL_LEASE_S
from inference.services.evals.working import carry_on as carry_on_eval
from tenants.services.webhook_delivery import deliver
from tenants.services.webhooks import KIND as WEBHOOK
from workers.services.mail import KIND as MAIL
from workers.services.mail import mail_effect
from workers.services.outbox import Effect

EFFECTS: dict[str, Effect] = {
    MAIL: mail_effect(),
    INVOICE: Effect(act=present_document, is_in_database=False, lease_s=120.0),
    EXPORT: Effect(act=carry_on_export, is_in_database=False, lease_s=EXPORT_LEASE_S),
    EVAL: Effect(act=carry_on_eval, is_in_database=False, lease_s=EVAL_LEASE_S),
    CLOSING: Effect(act=carry_on_closing, is_in_database=False, lease_s=CLOSING_LEASE_S),
    RE_RATING: Effect(act=carry_on_re_rating, is_in_database=False, lease_s=RE_RATING_LEASE_S),
    RECONCILIATION: Effect(act=reconcile, is_in_database=False, lease_s=RECONCILIATION_LEASE_S),
    WEBHOOK: Effect(act=deliver, is_in_database=False, lease_s=60.0),
}
