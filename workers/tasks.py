"""Celery's doors: ids in, one service call. Each may run twice, or not at all: a sweep makes up for it."""

from billing.services.reconcile_runs import reconcile_today
from headway.celery_app import app
from tenants.services.alerts import raise_budget_alerts, raise_expiry_alerts
from tenants.services.key_use import note_key_use
from tenants.services.webhooks import forget_old_deliveries
from workers.effects import EFFECTS
from workers.services import outbox


@app.task
def carry_out_entry(entry_id: int) -> None:
    outbox.carry_out(entry_id, EFFECTS)


@app.task
def sweep_outbox() -> None:
    outbox.sweep()


@app.task
def sweep_key_use() -> None:
    note_key_use()


@app.task
def sweep_expiring_keys() -> None:
    raise_expiry_alerts()


@app.task
def sweep_budgets() -> None:
    raise_budget_alerts()


@app.task
def reconcile_ledger() -> None:
    reconcile_today()


@app.task
def forget_what_is_old() -> None:
    outbox.forget_done()
    forget_old_deliveries()
