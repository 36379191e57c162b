"""Fixtures of tests of the operators' pages: import both."""

import pytest
from django.test import Client

from tenants.models import User
from tenants.services.members import ensure_operator


@pytest.fixture
def operator(db: None) -> User:
    return ensure_operator(username="operator", password="x")


@pytest.fixture
def client(operator: User) -> Client:
    """Logged in as that operator."""
    client = Client()
    client.force_login(operator)
    return client
