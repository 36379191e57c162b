"""A tenant as it looks after some weeks: keys, limits, members, invitations, webhooks, usage. For pages and their pictures."""

import random
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from billing.services.ledger import record_usage
from inference.models import Pool, Replica, ReplicaState
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
ENDS = ("done",) * 30 + ("client_gone_after_first_token", "refused", "engine_died")


@dataclass(frozen=True)
class Furnished:
    tenant: Tenant
    people: dict[str, User]
    key: Any
    endpoint: Any

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
            f"{t}/requests/{REQUEST_ID}/",
            f"{t}/limits/",
            f"{t}/members/",
            f"{t}/audit/",
            f"{t}/audit/?action=key.issue",
            f"{t}/audit.csv?action=key.issue",
            f"{t}/settings/",
            f"{t}/webhooks/",
            f"{t}/webhooks/{self.endpoint.id}/",
        ]


def furnish(name: str = "acme", *, num_requests: int = 200) -> Furnished:
    tenant, people = full_tenant(name)
    owner = people["owner"]
    for model in MODELS:
        register_model(public_id=model, actor="test", version=VersionSpec(weights_uri=f"/{model}", engine_environment="e"))
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
    return Furnished(tenant, people, keys[0], endpoint)


def _use(tenant: Tenant, owner: User, key_ids: list[str], number: int) -> None:
    chance, now = random.Random(7), timezone.now().timestamp()
    drafts = []
    for count in range(number):
        age_s = 0.0 if count == 0 else chance.random() ** 2 * 12 * 86_400
        prompt, output, ttft_ms = chance.randint(40, 4000), chance.randint(5, 600), chance.randint(40, 700)
        ended_s, end = now - age_s - 2, "done" if count == 0 else chance.choice(ENDS)
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
                cached_tokens=prompt // chance.choice([2, 4, 8]),
                completion_tokens=output if end != "refused" else 0,
                usage_source="engine",
                queue_ms=chance.randint(0, 60),
                ttft_ms=ttft_ms if end != "refused" else None,
                total_ms=ttft_ms + output * 30,
                finish_reason="stop" if end == "done" else "",
                attempts=1,
                route_reason="soonest",
                amount_picos=(prompt * 2 + output * 6) * 1_000_000,
                price_version="1",
                gateway="g",
                started_at_s=ended_s - 2,
                ended_at_s=ended_s,
            )
        )
    drafts.sort(key=lambda each: each.ended_at_s)
    for start in range(0, len(drafts), 100):
        record_usage(drafts=drafts[start : start + 100])
