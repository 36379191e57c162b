"""Presets of the playground: kept for oneself or for all, opened by their address, and nothing but how it was set."""

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.models import Preset
from dashboard.services import presets
from tests.dashboard.furnished import MODELS, Furnished, furnish
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db
PARAMETERS = {"temperature": 0.5, "max_tokens": 64, "stop": ["END"], "schema": {"type": "object"}}


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=1)


def client_of(acme: Furnished, role: str = "owner") -> Client:
    client = Client()
    client.force_login(acme.people[role])
    return client


def save(client: Client, tenant: str = "acme", **given: Any) -> Any:
    usual = {"name": "brief", "visibility": "mine", "model": MODELS[1], "system": "Be brief.", "parameters": PARAMETERS}
    return client.post(f"/t/{tenant}/playground/presets/", json.dumps({**usual, **given}), "application/json")


def drawn(client: Client, address: str) -> str:
    return client.get(address).content.decode()


def test_a_preset_is_saved_and_opened_by_its_address(acme: Furnished) -> None:
    client = client_of(acme)
    saved = save(client).json()
    page = drawn(client, saved["url"])
    assert f'<option value="{MODELS[1]}" selected>' in page
    assert '"system": "Be brief."' in page and '"temperature": 0.5' in page and '"stop": ["END"]' in page
    again = save(client, system="Be very brief.").json()
    assert again["url"] == saved["url"], "one of the same name is replaced"
    assert '"Be very brief."' in drawn(client, saved["url"])


def test_one_of_my_own_is_nobodys_elses_and_a_shared_one_is_everybodys_of_the_tenant_alone(acme: Furnished) -> None:
    mine, other = client_of(acme), client_of(acme, "developer")
    private, shared = save(mine).json(), save(mine, name="for all", visibility="tenant").json()
    assert "no such preset" in drawn(other, private["url"]) and "Be brief." not in drawn(other, private["url"])
    assert "Be brief." in drawn(other, shared["url"])
    page = drawn(other, "/t/acme/playground/")
    assert "for all" in page and ">brief<" not in page
    _, people = full_tenant("globex")
    stranger = Client()
    stranger.force_login(people["owner"])
    address = shared["url"].replace("/t/acme/", "/t/globex/")
    assert "no such preset" in drawn(stranger, address) and "Be brief." not in drawn(stranger, address)


def test_who_may_delete_one(acme: Furnished) -> None:
    mine, developer, admin = client_of(acme, "developer"), client_of(acme, "developer"), client_of(acme, "admin")
    save(mine)
    save(mine, name="for all", visibility="tenant")
    save(client_of(acme), name="an owner's", visibility="tenant")
    ids = dict(Preset.objects.for_tenant(acme.tenant).values_list("name", "id"))

    def delete(client: Client, name: str) -> int:
        return client.post(f"/t/acme/playground/presets/{ids[name]}/delete/").status_code

    assert delete(developer, "an owner's") == 404, "shared by another"
    assert delete(admin, "brief") == 404, "not shared"
    assert Preset.objects.for_tenant(acme.tenant).count() == 3
    assert delete(admin, "for all") == delete(mine, "brief") == 200
    assert Preset.objects.for_tenant(acme.tenant).count() == 1


@pytest.mark.parametrize(
    "given",
    [
        {"name": " "},
        {"name": "x" * 61},
        {"name": "a\0b"},
        {"visibility": "world"},
        {"model": ""},
        {"system": "x" * 40_000},
        {"system": 7},
        {"parameters": []},
        {"parameters": {"messages": [{"role": "assistant", "content": "an answer"}]}},
        {"parameters": {"temperature": 99}},
        {"parameters": {"temperature": True}},
        {"parameters": {"max_tokens": 0.5}},
        {"parameters": {"stop": [""]}},
        {"parameters": {"stop": ["x"] * 33}},
        {"parameters": {"schema": "text"}},
        {"parameters": {"schema": {"a": "x" * 40_000}}},
    ],
    ids=str,
)
def test_what_is_no_preset_is_refused_with_a_reason_and_nothing_is_kept(acme: Furnished, given: dict[str, Any]) -> None:
    answer = save(client_of(acme), **given)
    assert answer.status_code == 400 and answer.json()["error"]
    assert not Preset.objects.for_tenant(acme.tenant).exists()


def test_what_is_no_json_is_refused(acme: Furnished) -> None:
    for body in ("{", "[]", '"x"', "[" * 100_000):
        assert client_of(acme).post("/t/acme/playground/presets/", body, "application/json").status_code == 400


def test_a_member_keeps_so_many_and_no_more(acme: Furnished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MAX_PRESETS", 2)
    answers = [save(client_of(acme), name=f"number {number}").status_code for number in range(3)]
    assert answers == [200, 200, 409]
    assert save(client_of(acme), name="number 1").status_code == 200


def test_a_preset_of_a_model_that_is_gone_says_so_and_another_is_chosen(acme: Furnished) -> None:
    client = client_of(acme)
    page = drawn(client, save(client, model="gone").json()["url"])
    assert "The preset&#x27;s model gone is not served any more" in page
    assert f'<option value="{MODELS[0]}" selected>' in page or f'<option value="{MODELS[1]}" selected>' in page


@pytest.mark.parametrize("asked", ["nonsense", "00000000-0000-4000-8000-000000000000", "x" * 5000])
def test_an_address_of_no_preset_says_so(acme: Furnished, asked: str) -> None:
    assert "There is no such preset" in drawn(client_of(acme), f"/t/acme/playground/?preset={asked}")
