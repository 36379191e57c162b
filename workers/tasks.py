"""Celery's doors: ids in, one service call. Each may run twice, or not at all: a sweep makes up for it."""

from billing.services.balances import expire_grants, release_stale_holds
from billing.services.closing import close_due
from billing.services.exports import forget_old_exports
from billing.services.reconcile_runs import reconcile_today
from dashboard.services.form_claims import forget_old_claims
from headway.celery_app import app
from inference.selectors import brain_seen_now, has_autoscaled_pools
from inference.services import fleet_sweep
from inference.services.autoscaling import autoscale_pools
from inference.services.evals.runs import start_next
from inference.services.pool_minutes import note_minutes
from inference.services.rollouts.ticking import tick
from inference.services.scale_decisions import forget_old_scaling
from inference.services.shadow_scores import forget_old_scores
from inference.services.wake_ups import wake_pools
from inference.services.weight_copies import want_needed_copies
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
def tick_rollouts() -> None:
    tick()


@app.task
def sweep_evals() -> None:
    start_next()


@app.task
def reconcile_ledger() -> None:
    reconcile_today()


@app.task
def stage_weights() -> None:
    want_needed_copies()


@app.task
def wake_sleeping_pools() -> None:
    wake_pools()


@app.task
def look_at_pools() -> None:
    if has_autoscaled_pools():
        autoscale_pools(shown=brain_seen_now())


@app.task
def note_pools() -> None:
    note_minutes(shown=brain_seen_now())


@app.task
def forget_what_is_old() -> None:
    forget_old_scaling()
    forget_old_scores()
    outbox.forget_done()
    forget_old_exports()
    forget_old_deliveries()
    forget_old_claims()
