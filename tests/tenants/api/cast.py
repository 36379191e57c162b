"""The API as a person in a session, or a program with a key, sees it."""

import json
from typing import Any

from django.test import Client

from tenants.models import Tenant, User
from tenants.services.keys import issue_api_key

BASE = "/api/v1"


class Api:
    """Paths are below `/api/v1/`; bodies are JSON."""

    def __init__(self, *, user: User | None = None, key: str = "") -> None:
        self._client = Client(raise_request_exception=True)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        if user is not None:
            self._client.force_login(user)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.call_raw(method, path, json.dumps(body) if body is not None else "", **headers)

    def call_raw(self, method: str, path: str, data: str, **headers: str) -> Any:
        answer: Any = self._client.generic(
            method, f"{BASE}/{path}", data, "application/json", headers={**self._headers, **headers}
        )
        if answer.streaming:
            answer.file = answer.getvalue()  # to its end: what is open is closed
        return answer

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)


def with_key(tenant: Tenant, *scopes: str, member: User | None = None) -> Api:
    return Api(key=issue_api_key(tenant=tenant, name="k", actor="test", scopes=scopes, member=member).text)


def code_of(answer: Any) -> str:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    code: str = error["code"]
    return code
