"""What the first page of an organisation shows."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from billing.selectors import first_request_at, has_used_key, spent_picos
from dashboard.today import Today, today_of
from headway.months import month_of
from inference.selectors import OfferedModel, offered_models
from tenants.selectors import TermsInForce, keys_of_tenant, terms_in_force
from tenants.services.tickets import PLAYGROUND_KEY_ID


@dataclass(frozen=True)
class Step:
    title: str
    text: str
    address: str
    is_done: bool


@dataclass(frozen=True)
class Overview:
    today: Today
    time_zone: str
    spent_picos: int
    month: str
    resets_at: datetime
    hard_limit_micros: int | None
    steps: list[Step]
    has_first_request: bool
    models: list[OfferedModel]
    example_model: str
    terms: TermsInForce

    @property
    def lead(self) -> str:
        return f"Plan {self.terms.plan}, up to the {self.terms.tier_ceiling} tier."

    @property
    def tokens_today(self) -> int:
        return self.today.input_tokens + self.today.output_tokens

    @property
    def num_done(self) -> int:
        return sum(step.is_done for step in self.steps)


def overview_of(tenant: Any) -> Overview:
    now = timezone.now()
    month, terms, models = month_of(now, tenant.time_zone), terms_in_force(tenant), offered_models()
    budgets = [limit.value for limit in terms.limits if limit.scope == "tenant" and limit.kind == "monthly_budget"]
    has_first = first_request_at(tenant.id, without_key=PLAYGROUND_KEY_ID) is not None
    ready = [model.id for model in models if model.ready] or [model.id for model in models]
    return Overview(
        today=today_of(tenant, now),
        time_zone=tenant.time_zone,
        spent_picos=spent_picos(tenant.id, month.name),
        month=month.name,
        resets_at=datetime.fromtimestamp(month.ends_s, UTC),
        hard_limit_micros=min(budgets, default=None),
        steps=_steps(tenant, has_first, bool(budgets)),
        has_first_request=has_first,
        models=models,
        example_model=ready[0] if ready else "your-model",
        terms=terms,
    )


def _steps(tenant: Any, has_first: bool, has_budget: bool) -> list[Step]:
    return [
        Step(
            "Create an API key",
            "Shown once; it carries what it may do.",
            "keys_new",
            keys_of_tenant(tenant).filter(revoked_at=None).exists(),
        ),
        Step(
            "Try the playground",
            "Stream an answer without writing code.",
            "playground",
            has_used_key(tenant.id, PLAYGROUND_KEY_ID),
        ),
        Step("Call the API", "Any OpenAI client works: set the base URL and your key.", "keys", has_first),
        Step("Set a hard limit", "Spending stops there, before a request is sent.", "limits", has_budget),
    ]
