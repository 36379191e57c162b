"""Schemathesis holds the control API to its OpenAPI document: what it takes, and that every answer is described."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings

from inference.models import Model
from tenants.services.keys import issue_api_key
from tenants.services.members import ensure_operator
from tests.billing.issued import issued
from tests.tenants.cast import full_tenant, tenant_with

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OF_OPERATORS = "/api/v1/operator/"
METHODS = {"get", "post", "put", "patch", "delete"}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth"


def check_as_member(live_server: Any, folder: Path, *options: str) -> None:
    tenant, people = full_tenant("acme")
    Model.objects.create(public_id="tiny")
    with override_settings(COMPANY_NAME="Example Inference GmbH"):
        issued(tenant)
    key = issue_api_key(
        tenant=tenant, name="k", actor="test", scopes=["manage", "read_usage", "inference"], member=people["owner"]
    )
    check(live_server, folder, "--header", f"Authorization: Bearer {key.text}", "--checks", CHECKS, *options)


def check_as_operator(live_server: Any, folder: Path, *options: str) -> None:
    """What operators alone may: in a session, as nothing else opens it."""
    Model.objects.create(public_id="tiny")
    with override_settings(COMPANY_NAME="Example Inference GmbH"):
        issued(tenant_with("acme"))
    client = Client()
    client.force_login(ensure_operator(username="operator", password="x"))
    token = "t" * 32
    cookies = f"Cookie: sessionid={client.cookies['sessionid'].value}; csrftoken={token}"
    headers = ("--header", cookies, "--header", f"X-CSRFToken: {token}", "--include-path-regex", f"^{OF_OPERATORS}")
    checks = CHECKS.removesuffix(",ignored_auth")
    check(live_server, folder, *headers, "--checks", checks, *options, below=OF_OPERATORS)


def check(live_server: Any, folder: Path, *options: str, below: str = "/api/v1/") -> None:
    """Fails with what Schemathesis prints, or where it leaves out an operation. It is given the document: it would wait ten
    seconds for it, and no longer.
    """
    document = folder / "openapi.json"
    document.write_bytes(Client().get("/api/v1/openapi.json").content)
    paths = json.loads(document.read_text())["paths"]
    num_operations = sum(len(METHODS & methods.keys()) for path, methods in paths.items() if path.startswith(below))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "control_api.toml")),
        *("run", str(document), "--url", live_server.url),
        *("--seed", "1", "--continue-on-failure", "--no-shrink", "--no-color", *options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert num_operations > 90 and f"Tested: {num_operations}\n" in done.stdout, done.stdout[-2000:]


@pytest.mark.django_db(transaction=True)
def test_random_requests_are_answered_as_the_document_says(live_server: Any, tmp_path: Path) -> None:
    check_as_member(live_server, tmp_path, "--phases", "fuzzing", "--max-examples", "4")


@pytest.mark.django_db(transaction=True)
def test_random_requests_of_operators_are_answered_as_the_document_says(
    live_server: Any, tmp_path: Path, settings: Any
) -> None:
    settings.COMPANY_NAME = "Example Inference GmbH"
    check_as_operator(live_server, tmp_path, "--phases", "fuzzing", "--max-examples", "4")


@pytest.mark.soak
@pytest.mark.django_db(transaction=True)
def test_every_bound_of_the_document_is_tried(live_server: Any, tmp_path: Path) -> None:
    check_as_member(live_server, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "60")
