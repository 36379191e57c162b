"""What two versions did: whose requests count."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import Attempt, AttemptOutcome
from billing.services.version_reads import use_of_versions
from tests.billing.records import attempt, usage_record

pytestmark = pytest.mark.django_db
PINNED = uuid.UUID(int=7)


def test_of_tenants_that_are_left_out_neither_answers_nor_failures_count() -> None:
    """Their failures alone would make a stable version look worse than it is, and hide what a candidate does."""
    since = timezone.now() - timedelta(minutes=1)
    for tenant in (uuid.UUID(int=1), PINNED, PINNED):
        attempt(usage_record(tenant_id=tenant, version="v1"), replica="r", ending="engine_error")
    Attempt.objects.update(model="m", version="v1", outcome=AttemptOutcome.FAILED)
    whole, part = (use_of_versions(model="m", versions=["v1"], since=since, without=each)["v1"] for each in ([], [PINNED]))
    assert (whole.requests, whole.failed) == (3, 3)
    assert (part.requests, part.failed) == (1, 1)
