"""The commands of keys and of models that go: what they do, and one clear line for what is wrong."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from inference.models import Model
from tenants.models import ApiKey, EventType, Tenant, WebhookDelivery
from tenants.services.tenants import create_tenant
from tenants.services.webhooks import add_endpoint
from tests.workers.broker import Broker

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> Tenant:
    Broker(monkeypatch)
    Model.objects.create(public_id="tiny")
    return create_tenant(name="acme", actor="test")


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_key_is_issued_with_what_binds_it(acme: Tenant) -> None:
    bound = ("--scope", "manage", "--scope", "read_usage", "--model", "tiny", "--address", "203.0.113.7")
    made = json.loads(run("issue_key", "acme", "--name", "ci", "--json", *bound, "--tier-ceiling", "batch"))
    key = ApiKey.objects.for_tenant(acme).get(id=made["id"])
    assert (key.scopes, key.allowed_models) == (["manage", "read_usage"], ["tiny"])
    assert (key.allowed_addresses, key.tier_ceiling) == (["203.0.113.7/32"], "batch")


@pytest.mark.parametrize("wrong", [("--scope", "all"), ("--model", "gpt-9"), ("--address", "home"), ("--tier-ceiling", "top")])
def test_what_binds_no_key_is_named(acme: Tenant, wrong: tuple[str, str]) -> None:
    with pytest.raises(CommandError):
        run("issue_key", "acme", "--name", "ci", *wrong)
    assert not ApiKey.objects.for_tenant(acme).exists()


def test_a_models_end_is_announced(acme: Tenant) -> None:
    add_endpoint(tenant=acme, url="https://hooks.example/", events=[EventType.MODEL_RETIRING.value], actor="test")
    assert run("announce_retirement", "tiny", "--on", "2027-01-31").strip() == "1 tenants are told"
    assert WebhookDelivery.objects.for_tenant(acme).get().event.data["retires_at"] == "2027-01-31T00:00:00+00:00"
    for arguments in (("tiny", "--on", "soon"), ("gpt-9", "--on", "2027-01-31")):
        with pytest.raises(CommandError):
            run("announce_retirement", *arguments)
