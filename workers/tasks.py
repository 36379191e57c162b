"""Celery's doors: ids in, one service call. Each may run twice, or not at all: a sweep makes up for it."""

from billing.services.balances import expire_grants, release_stale_holds
from billing.services.closing import close_due
from billing.services.exports import forget_old_exports
from billing.services.reconcile_runs import reconcile_today
from dashboard.services.form_claims import forget_old_claims
from headway.celery_app import app
from inference.services import fleet_sweep
from tenants.services.alerts import raise_budget_alerts, raise_expiry_alerts
from tenants.services.balance_alerts import check_balances, raise_balance_alerts
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
def look_after_fleet() -> None:
    fleet_sweep.look_after_fleet()


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
def sweep_statements() -> None:
    close_due()


@app.task
def sweep_holds() -> None:
    release_stale_holds()


@app.task
def sweep_grants() -> None:
    expire_grants()


@app.task
def sweep_balances() -> None:
    raise_balance_alerts()


@app.task
def look_at_balances() -> None:
    check_balances()


@app.task
def reconcile_ledger() -> None:
    reconcile_today()


@app.task
def forget_what_is_old() -> None:
    outbox.forget_done()
    forget_old_exports()
    forget_old_deliveries()
    forget_old_claims()
