import pytest

from billing.services.credit_notes import issue_credit_note
from billing.services.invoice_reads import (
    credit_notes_of_tenant,
    due_by_currency,
    every_invoice,
    invoices_of_tenant,
    line_of_invoice,
    payments_of_invoice,
    statements_of_tenant,
)
from billing.services.invoices import invoice_numbered
from billing.services.payments import mark_paid
from headway.errors import NotFound
from tenants.services.tenants import create_tenant
from tests.billing.issued import issued

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]


def test_a_tenant_reads_its_own_and_an_operator_all() -> None:
    acme, other = create_tenant(name="acme", actor="test"), create_tenant(name="other", actor="test")
    october, november = issued(acme, month=10), issued(acme, month=11)
    foreign = issued(other, month=9)
    assert list(invoices_of_tenant(acme.id)) == [november, october]
    assert [each.month for each in statements_of_tenant(acme.id)] == ["2026-11", "2026-10"]
    assert list(every_invoice()) == [foreign, november, october]
    assert list(every_invoice(month="2026-10")) == [october]
    mark_paid(number=str(october.number), reference="t1", actor="test")
    assert list(every_invoice(state="paid")) == [october]
    assert [each.reference for each in payments_of_invoice(october)] == ["t1"]
    note = issue_credit_note(number=str(november.number), reason="a mistake", actor="test", amounts={1: 100})
    assert list(credit_notes_of_tenant(acme.id)) == [note] and not credit_notes_of_tenant(other.id)
    assert due_by_currency(acme.id) == {"USD": 900}
    assert line_of_invoice(november, 2).amount_minor == 700
    with pytest.raises(NotFound):
        line_of_invoice(november, 3)
    with pytest.raises(NotFound):
        invoice_numbered(str(november.number), tenant_id=other.id)
