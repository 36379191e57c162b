"""Numbers of documents, without gaps."""

from django.db import connection
from django.db.models import F

from billing.invoice_models import NumberSeries


def take_number(series: str) -> str:
    """The next of a series: "INV-000007".

    Call it late in the transaction that issues the document: others wait for its end, and where it fails the number was
    never taken.
    """
    assert connection.in_atomic_block, "a number is taken in the transaction that uses it"
    rows = NumberSeries.objects.filter(name=series)
    if not rows.update(last_number=F("last_number") + 1):
        NumberSeries.objects.bulk_create([NumberSeries(name=series)], ignore_conflicts=True)
        rows.update(last_number=F("last_number") + 1)
    return f"{series}-{rows.get().last_number:06d}"
