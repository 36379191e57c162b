"""A tenant as it looks after some weeks: keys, limits, members, invitations, webhooks, usage. For pages and their pictures."""

import random
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.test import override_settings
from django.utils import timezone

from billing.models import Price
from billing.services.accounts import set_billing_account
from billing.services.balances import grant_credit
from billing.services.closing import close_statement
from billing.services.credit_notes import issue_credit_note
from billing.services.ledger import record_usage
from billing.services.rating import amount_of
from inference.models import Pool, Replica, ReplicaState
from inference.policy.decisions import TokenPrice, Usage
from inference.selectors import has_model
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from tenants.models import LimitKind, Tenant, User
from tenants.services.invitations import invite
from tenants.services.keys import disable_api_key, issue_api_key, revoke_api_key
from tenants.services.terms import set_limits
from tenants.services.tickets import PLAYGROUND_KEY_ID
from tenants.services.webhooks import add_endpoint, send_test
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import full_tenant

MODELS = ("smollm2-135m", "org/large-model")
REQUEST_ID = "req_" + "a" * 24
PRICE = TokenPrice(2_000_000, 1_000_000, 6_000_000)
ENDS = ("done",) * 30 + ("client_gone_after_first_token", "refused", "engine_died")


@dataclass(frozen=True)
class Furnished:
    tenant: Tenant
    people: dict[str, User]
    key: Any
    endpoint: Any
    invoice: Any

    def addresses(self) -> list[str]:
        """Of every page that is got, most of them with something on it, and some with nothing."""
        t = f"/t/{self.tenant.name}"
        return [
            f"{t}/",
            f"{t}/playground/",
            f"{t}/keys/",
            f"{t}/keys/?q=nothing-like-it",
            f"{t}/keys/?status=all&page=1",
            f"{t}/keys/new/",
            f"{t}/keys/{self.key.id}/",
            f"{t}/models/",
            f"{t}/usage/",
            f"{t}/usage/?range=today&granularity=minute&metric=ttft_ms&group=key",
            f"{t}/usage/?range=custom&from=2020-01-01&to=2020-01-02",
            f"{t}/usage/?range=30d&cumulative=1",
            f"{t}/usage.csv?range=30d",
            f"{t}/requests.csv?range=30d",
            f"{t}/requests/",
            f"{t}/requests/?ended=failed&model={MODELS[0]}",
            f"{t}/requests/?q=req_nothing",
            f"{t}/exports/",
            f"{t}/requests/{REQUEST_ID}/",
            f"{t}/limits/",
            f"{t}/members/",
            f"{t}/audit/",
            f"{t}/audit/?action=key.issue",
            f"{t}/audit.csv?action=key.issue",
            f"{t}/settings/",
            f"{t}/billing/",
            f"{t}/billing/invoices/",
            f"{t}/billing/invoices/?state=void",
            f"{t}/billing/invoices/{self.invoice.number}/",
            f"{t}/billing/invoices/{self.invoice.number}/lines/1/",
            f"{t}/webhooks/",
            f"{t}/webhooks/{self.endpoint.id}/",
        ]


def furnish(name: str = "acme", *, num_requests: int = 200) -> Furnished:
    tenant, people = full_tenant(name)
    owner = people["owner"]
    for model in MODELS:
        if has_model(model):
            continue  # of another tenant that was furnished
        register_model(public_id=model, actor="test", version=VersionSpec(weights_uri=f"/{model}", engine_environment="e"))
        if not Price.objects.filter(model=model).exists():
            long_ago = datetime(2020, 1, 1, tzinfo=UTC)
            amounts = {"input_micros": 2_000_000, "cached_micros": 1_000_000, "output_micros": 6_000_000}
            Price.objects.create(model=model, version=1, effective_from=long_ago, **amounts)
        pool = Pool.objects.get(model__public_id=model)
        Replica.objects.create(
            id=f"rep-{pool.id}",
            pool=pool,
            version=pool.version,
            url="http://127.0.0.1:9",
            upstream_model="m",
            state=ReplicaState.READY,
            max_model_len=8192,
            changed_at=timezone.now(),
        )
    soon = timezone.now() + timedelta(days=5)
    names = ("production backend", "staging", "nightly evaluation", "an old one")
    keys = [issue_api_key(tenant=tenant, name=each, actor=f"user:{owner}", member=owner).key for each in names]
    disable_api_key(tenant=tenant, key_id=keys[2].id, actor=f"user:{owner}")
    revoke_api_key(tenant=tenant, key_id=keys[3].id, actor=f"user:{owner}")
    issue_api_key(tenant=tenant, name="on trial", actor=f"user:{owner}", expires_at=soon, limits={LimitKind.BUDGET: 5_000_000})
    limits = {LimitKind.REQUESTS: 600, LimitKind.OUTPUT_TOKENS: 200_000, LimitKind.BUDGET: 50_000_000}
    set_limits(tenant=tenant, limits=limits, actor=f"user:{owner}")
    set_limits(tenant=tenant, limits={LimitKind.CONCURRENCY: 8}, model=MODELS[0], actor=f"user:{owner}")
    for email in ("grace@example.com", "linus@example.com"):
        invite(tenant=tenant, email=email, role="developer", actor=f"user:{owner}", actor_role="owner", by=owner)
    endpoint = add_endpoint(
        tenant=tenant, url="https://hooks.example.com/headway", events=["budget.reached"], actor=f"user:{owner}"
    ).endpoint
    send_test(tenant=tenant, endpoint_id=str(endpoint.id), actor=f"user:{owner}")
    _use(tenant, owner, [keys[0].id, keys[1].id, PLAYGROUND_KEY_ID], num_requests)
    invoice = _bill(tenant, f"user:{owner}", keys[0].id)
    return Furnished(tenant, people, keys[0], endpoint, invoice)


def _bill(tenant: Tenant, actor: str, key_id: str) -> Any:
    """Of the month before the last one, so that no usage page of 30 days shows it; then credit is given."""
    month = timezone.now().replace(day=1)
    for _ in range(2):
        month = (month - timedelta(days=1)).replace(day=1)
    at = datetime(month.year, month.month, 15, 12, tzinfo=UTC)
    account: dict[str, Any] = {
        "legal_name": "Acme GmbH",
        "address": ["Beispielweg 1", "10115 Berlin"],
        "country": "DE",
        "currency": "USD",
    }
    set_billing_account(tenant_id=tenant.id, actor=actor, email="pay@acme.example", purchase_order="PO-4711", **account)
    usage = Usage(prompt_tokens=900_000, cached_tokens=300_000, completion_tokens=210_000)
    drafts = [
        draft(
            f"req_{uuid.uuid4().hex[:24]}",
            "done",
            tenant_id=str(tenant.id),
            key_id=key_id,
            model=model,
            tier="standard",
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            usage_source="engine",
            amount_picos=amount_of("done", usage, PRICE),
            price_version="1",
            started_at_s=at.timestamp() - 9,
            ended_at_s=at.timestamp() + number,
        )
        for number, model in enumerate(MODELS * 3)
    ]
    record_usage(drafts=drafts, now=at)
    with override_settings(COMPANY_NAME="Example Inference GmbH", BANK_DETAILS=["Example Bank", "IBAN DE02 1203 0000"]):
        invoice = close_statement(tenant_id=tenant.id, month=f"{at:%Y-%m}", actor="test").invoice
    assert invoice is not None
    issue_credit_note(number=str(invoice.number), reason="an hour of errors", actor="test", amounts={1: 1})
    invoice.refresh_from_db()
    soon = timezone.now() + timedelta(days=20)
    grant_credit(
        tenant_id=tenant.id, amount_micros=25_000_000, reason="welcome", actor="test", kind="promotion", expires_at=soon
    )
    return invoice


def _use(tenant: Tenant, owner: User, key_ids: list[str], number: int) -> None:
    # Of "acme" it is always the same; another tenant has requests of its own.
    chance, now = random.Random(7 if tenant.name == "acme" else tenant.name), timezone.now().timestamp()
    drafts = []
    for count in range(number):
        age_s = 0.0 if count == 0 else chance.random() ** 2 * 12 * 86_400
        prompt, output, ttft_ms = chance.randint(40, 4000), chance.randint(5, 600), chance.randint(40, 700)
        ended_s, end = now - age_s - 2, "done" if count == 0 else chance.choice(ENDS)
        usage = Usage(prompt, prompt // chance.choice([2, 4, 8]), output if end != "refused" else 0)
        drafts.append(
            draft(
                REQUEST_ID if count == 0 else f"req_{uuid.UUID(int=chance.getrandbits(128)).hex[:24]}",
                end,
                tenant_id=str(tenant.id),
                key_id=chance.choice(key_ids),
                member_id=owner.id,
                model=chance.choice(MODELS),
                version="v1",
                tier=chance.choice(["interactive", "standard"]),
                replica="rep-1",
                prompt_tokens=prompt,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                usage_source="engine",
                queue_ms=chance.randint(0, 60),
                ttft_ms=ttft_ms if end != "refused" else None,
                total_ms=ttft_ms + output * 30,
                finish_reason="stop" if end == "done" else "",
                attempts=1,
                route_reason="soonest",
                amount_picos=amount_of(end, usage, PRICE),
                price_version="1",
                gateway="g",
                started_at_s=ended_s - 2,
                ended_at_s=ended_s,
            )
        )
    drafts.sort(key=lambda each: each.ended_at_s)
    for start in range(0, len(drafts), 100):
        record_usage(drafts=drafts[start : start + 100])
