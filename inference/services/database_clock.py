"""What time it is for everybody: workers on several machines take turns, and their clocks differ."""

from datetime import datetime

from django.db import connection
from django.utils import timezone


def database_now() -> datetime:
    """PostgreSQL's clock; with SQLite all are on one machine, whose own it is."""
    if connection.vendor != "postgresql":
        return timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found
