"""Weights on nodes and what fits, over REST: the same services as the commands."""

from typing import Any

import pytest
from django.test import override_settings

from headway.home import Home
from inference.services.heartbeats import Beat, note_beat
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from inference.services.weight_copies import advance_copy, note_copy
from inference.weight_models import CopyState, WeightCopy
from tenants.access import Scope
from tenants.models import AuditEntry
from tenants.services.members import ensure_operator
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db
SEVENTY = {"params_b": 70, "layers": 80, "kv_heads": 8, "head_dim": 128}


@pytest.fixture
def api() -> Api:
    register_model(public_id="org/m", actor="test", version=VersionSpec("hf:org/m@v1", "vllm-cpu-0.32.0"))
    for name in ("a", "b"):
        note_beat(node=name, beat=Beat("cpu-x86_64-avx2", zone="", max_replicas=0, loads={}))
    return Api(user=ensure_operator(username="operator", password="x"))


def stage(api: Api, **body: Any) -> Any:
    return api.call("POST", "operator/weights/", body)


def test_a_version_is_wanted_on_nodes_and_shown_with_its_progress(api: Api) -> None:
    answer = stage(api, version="org/m:v1", nodes=["b"])
    assert (answer.status_code, answer.json()) == (202, {"version": "org/m v1", "nodes": ["b"]})
    version_id = WeightCopy.objects.get().version_id
    advance_copy(version_id=version_id, node="b", expected=CopyState.WANTED, to=CopyState.STAGING)
    note_copy(version_id=version_id, node="b", reason="downloading", bytes_done=7, bytes_total=9)
    (shown,) = api.get("operator/weights/").json()["results"]
    assert (shown["model"], shown["version"], shown["node"], shown["state"]) == ("org/m", "v1", "b", "staging")
    assert (shown["bytes_done"], shown["bytes_total"], shown["reason"]) == (7, 9, "downloading")
    assert AuditEntry.objects.filter(action="version.stage", actor="operator:operator").exists()


def test_without_nodes_it_is_every_one_that_can_run_it_and_the_list_is_narrowed(api: Api) -> None:
    assert stage(api, version="org/m").json()["nodes"] == ["a", "b"]
    assert [row["node"] for row in api.get("operator/weights/?node=a").json()["results"]] == ["a"]
    assert api.get("operator/weights/?state=failed").json()["results"] == []


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"version": "other"}, "model_not_found", "model"),
        ({"version": "org/m:v7"}, "version_not_found", "version"),
        ({"version": "org/m", "nodes": ["z"]}, "invalid_value", "nodes"),
        ({"version": "org/m", "nodes": []}, "invalid_value", "nodes"),
        ({"version": ""}, "invalid_value", "version"),
    ],
)
def test_what_there_is_not_is_refused_and_nothing_is_wanted(api: Api, body: dict[str, Any], code: str, param: str) -> None:
    answer = stage(api, **body)
    assert (code_of(answer), answer.json()["error"]["param"]) == (code, param)
    assert not WeightCopy.objects.exists()


def capacity(api: Api, **asked: Any) -> Any:
    return api.call("POST", "operator/capacity/", asked)


def test_what_fits_is_answered_with_exact_numbers(api: Api) -> None:
    formats = {"weights_dtype": "fp8", "kv_dtype": "fp8"}
    found = capacity(api, **SEVENTY, **formats, gpu="h100-80", gpus=8, context=8192).json()
    assert found["kv_bytes_per_token"]["fp8"] == 163_840
    assert (found["weights_bytes"], found["sequences"]) == (70 * 10**9, 381)


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        ({**SEVENTY, "gpu": "h100-80"}, "does_not_fit", "its weights take 140.0 GB, and one GPU has 72.7 GB"),
        (SEVENTY, "invalid_value", "either --gpu or --kv-cache-mib"),
        ({**SEVENTY, "gpu": "abacus"}, "invalid_value", "abacus"),
        ({"model": "/etc", "gpu": "h100-80"}, "invalid_value", "public id"),
        ({"model": "org/m", "gpu": "h100-80"}, "invalid_value", "not staged on this machine"),
        ({"model": "org/m", "layers": 3, "gpu": "h100-80"}, "invalid_value", "goes without --model"),
    ],
)
def test_questions_without_an_answer_are_refused(api: Api, tmp_path: Any, asked: dict[str, Any], code: str, text: str) -> None:
    with override_settings(HOME=Home(tmp_path)):
        answer = capacity(api, **asked)
    assert (answer.status_code, code_of(answer)) == (400, code)
    assert text in answer.json()["error"]["message"]


def test_nobody_members_and_keys_are_refused_and_nothing_is_wanted(api: Api) -> None:
    tenant, people = full_tenant("acme")
    callers = [
        (Api(), 401),
        (Api(user=people["owner"]), 403),
        (with_key(tenant, *Scope, member=ensure_operator(username="operator", password="x")), 403),
    ]
    for caller, status in callers:
        assert caller.get("operator/weights/").status_code == status
        assert stage(caller, version="org/m").status_code == status
        assert capacity(caller, **SEVENTY, gpu="h100-80").status_code == status
    assert not WeightCopy.objects.exists()
