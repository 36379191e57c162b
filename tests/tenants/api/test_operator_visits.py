"""Operators over REST: who visited whom, and visits begun and ended."""

import pytest

from tenants.models import AuditEntry, OperatorVisit
from tenants.selectors import visit_of
from tenants.services.members import add_member, ensure_operator
from tests.tenants.api.cast import Api, code_of
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db
PATH = "operator/visits/"


def test_a_visit_is_begun_listed_and_ended_on_record() -> None:
    operator, other = (ensure_operator(username=name, password="x") for name in ("ann", "ben"))
    for name in ("acme", "globex"):
        tenant_with(name)
    ann, ben = Api(user=operator), Api(user=other)
    begun = ann.post(PATH, {"tenant": "acme", "role": "viewer", "reason": "ticket 7"})
    assert begun.status_code == 201
    assert (begun.json()["operator"], begun.json()["tenant"], begun.json()["role"]) == ("ann", "acme", "viewer")
    ben.post(PATH, {"tenant": "globex", "role": "owner", "reason": "ticket 8"})
    assert [each["tenant"] for each in ann.get(PATH).json()["results"]] == ["globex", "acme"]
    assert [each["operator"] for each in ann.get(f"{PATH}?tenant=acme").json()["results"]] == ["ann"]
    assert [each["tenant"] for each in ann.get(f"{PATH}?operator=ben").json()["results"]] == ["globex"]
    assert ann.post(f"{PATH}end/").json() == {"ended": 1} and ann.post(f"{PATH}end/").json() == {"ended": 0}
    assert visit_of(operator, "acme") is None and visit_of(other, "globex") is not None
    actions = AuditEntry.objects.filter(actor="operator:ann").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["operator.visit", "operator.leave"]


def test_a_visit_without_a_reason_or_to_ones_own_tenant_is_refused() -> None:
    operator = ensure_operator(username="ann", password="x")
    acme = tenant_with("acme")
    ann, asked = Api(user=operator), {"tenant": "acme", "role": "viewer", "reason": "x"}
    for wrong in ({"reason": " "}, {"role": "king"}, {"tenant": None}):
        assert ann.post(PATH, {**asked, **wrong}).status_code == 400
    assert code_of(ann.post(PATH, {**asked, "tenant": "nobody"})) == "tenant_not_found"
    add_member(tenant=acme, user=operator, role="owner", actor="test")
    assert ann.post(PATH, asked).status_code == 403
    assert not OperatorVisit.objects.exists()
