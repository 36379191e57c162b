"""Usage as gateways price it: a list price by its version, less the plan's discount, by the rule of the request's end."""

from datetime import UTC, datetime
from typing import Any

from billing.models import Price
from billing.services.ledger import UsageDraft
from billing.services.rating import amount_of
from inference.gateway.tenant_rows import net_price
from inference.policy.decisions import TokenPrice, Usage
from tenants.models import Tenant
from tests.inference.gateway.usage_drafts import draft

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def price(version: int, *picos_a_token: int, model: str = "tiny", effective_from: datetime = LONG_AGO) -> Price:
    """Input, cached input, output."""
    input_picos, cached_picos, output_picos = picos_a_token
    return Price.objects.create(
        model=model,
        version=version,
        input_micros=input_picos,
        cached_micros=cached_picos,
        output_micros=output_picos,
        effective_from=effective_from,
    )


def used(
    tenant: Tenant,
    request_id: str,
    at: datetime,
    *,
    tokens: tuple[int, int, int] = (100, 0, 10),
    price: Price | None = None,
    discount_percent: int = 0,
    end_state: str = "done",
    **others: Any,
) -> UsageDraft:
    """`tokens`: of the prompt, of it from the cache, of the answer."""
    prompt, cached, completion = tokens
    fields: dict[str, Any] = {
        "tenant_id": str(tenant.id),
        "model": "tiny",
        "started_at_s": at.timestamp() - 1,
        "ended_at_s": at.timestamp(),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
        "usage_source": "engine",
    }
    if price is not None:
        listed = TokenPrice(price.input_micros, price.cached_micros, price.output_micros)
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
        amount_picos = amount_of(end_state, usage, net_price(listed, discount_percent))
        fields |= {"price_version": str(price.version), "model": price.model, "amount_picos": amount_picos}
        fields["discount_percent"] = discount_percent
    return draft(request_id, end_state, **(fields | others))
