"""N8: whatever goes wrong, the API answers with its one form of errors."""

from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection

from tenants.api import keys
from tenants.models import Tenant, User
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> tuple[Tenant, dict[str, User]]:
    return full_tenant("acme")


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_n8_with_the_database_away_callers_are_told_to_come_back(
    cast: tuple[Tenant, dict[str, User]], error: type[Exception]
) -> None:
    def away(*_: Any) -> None:
        raise error("the connection is closed")

    for caller in (Api(user=cast[1]["owner"]), with_key(cast[0], "manage")):
        with connection.execute_wrapper(away):
            answers = [
                caller.get("tenants/"),
                caller.get("tenants/acme/keys/"),
                caller.post("tenants/acme/keys/", {"name": "x"}),
            ]
        for answer in answers:
            assert (answer.status_code, code_of(answer), answer["retry-after"]) == (503, "unavailable", "2")
        assert caller.get("tenants/acme/keys/").status_code == 200


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_n8_a_body_that_is_nested_too_deep_is_a_bad_request(cast: tuple[Tenant, dict[str, User]], opening: str) -> None:
    client = Api(user=cast[1]["owner"])
    answer = client.call_raw("POST", "tenants/acme/keys/", opening * 100_000)
    assert (answer.status_code, code_of(answer)) == (400, "invalid_value")


def test_n8_a_fault_of_ours_says_nothing_of_itself(
    cast: tuple[Tenant, dict[str, User]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(keys.OneKey, "_shown", fail)
    answer = Api(user=cast[1]["owner"]).get("tenants/acme/keys/x/")
    assert (answer.status_code, code_of(answer)) == (500, "internal_error")
    assert b"secret" not in answer.content
