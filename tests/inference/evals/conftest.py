"""A model with two versions, a small set, and a gateway that says what it is told to say."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inference.eval_models import EvalRun, EvalSet
from inference.models import ModelVersion, Pool
from inference.services.evals.sets import import_eval_set
from inference.services.registry import register_model, register_version
from inference.services.version_spec import VersionSpec
from tests.inference.evals.fake_gateway import FakeGateway, fake_gateway
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out

SPEC = VersionSpec(weights_uri="/weights/m", engine_environment="vllm-cpu-0.32.0")


@pytest.fixture
def pool(db: None) -> Pool:
    register_model(public_id="m", actor="test", version=SPEC)
    register_version(public_id="m", spec=SPEC, actor="test")
    return Pool.objects.select_related("model", "version").get()


@pytest.fixture
def versions(pool: Pool) -> tuple[ModelVersion, ModelVersion]:
    first, second = ModelVersion.objects.order_by("number")
    return first, second


@pytest.fixture
def gateway(settings: Any) -> Iterator[FakeGateway]:
    with fake_gateway() as found:
        settings.EVAL_API_URL = found.url
        yield found


def case_lines(number: int, **more: Any) -> list[bytes]:
    """Cases `say 1`, `say 2`, ... that want the answer `ok`."""
    check = {"type": "exact", "value": "ok"}
    rows = [{"id": f"c{each}", "prompt": f"say {each}", "checks": [check], **more} for each in range(1, number + 1)]
    return [json.dumps(row).encode() for row in rows]


def small_set(number: int = 6, name: str = "small") -> EvalSet:
    return import_eval_set(name=name, lines=case_lines(number), actor="test").eval_set


def work_once() -> None:
    """What a worker does with the oldest entry that is not done, whenever it is due."""
    entry = OutboxEntry.objects.filter(kind="eval", done_at=None, given_up_at=None).earliest("id")
    OutboxEntry.objects.filter(pk=entry.pk).update(due_at=entry.created_at)
    carry_out(entry.id, EFFECTS)


def work(at_most: int = 30) -> None:
    """Until there is no such entry."""
    while OutboxEntry.objects.filter(kind="eval", done_at=None, given_up_at=None).exists():
        assert at_most, "it ends"
        work_once()
        at_most -= 1


def again(run: EvalRun) -> EvalRun:
    run.refresh_from_db()
    return run
