"""Named settings of an engine and the flags they become; what contradicts itself is refused."""

import json
from typing import Any

import pytest

from headway.errors import InvalidInput
from inference.engines.options import EngineOptions, check_pool_args, joined, over
from inference.engines.speculation import draft_uri, uris_of, with_local_draft


def words(**options: Any) -> list[str]:
    return EngineOptions(**options).words()


def test_nothing_said_becomes_nothing() -> None:
    assert words() == []


def test_each_setting_becomes_the_engines_flag() -> None:
    assert words(max_model_len=8192) == ["--max-model-len", "8192"]
    assert words(tensor_parallel=4, pipeline_parallel=2) == ["--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"]
    assert words(batch_cap=64, max_batched_tokens=256) == ["--max-num-seqs", "64", "--max-num-batched-tokens", "256"]
    assert words(chunked_prefill=True, prefix_caching=False) == ["--enable-chunked-prefill", "--no-enable-prefix-caching"]
    assert words(kv_cache_dtype="fp8", scheduling_policy="fcfs") == [
        "--kv-cache-dtype", "fp8", "--scheduling-policy", "fcfs",
    ]  # fmt: skip
    assert words(gpu_memory_utilisation=0.85) == ["--gpu-memory-utilization", "0.85"]


@pytest.mark.parametrize(
    ("speculate", "config"),
    [
        ("ngram:4", {"method": "ngram", "num_speculative_tokens": 4}),
        (
            "ngram:4:2-5",
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
        ),
        ("draft:/models/small:3", {"method": "draft_model", "model": "/models/small", "num_speculative_tokens": 3}),
        ("draft:file:///models/small:3", {"method": "draft_model", "model": "/models/small", "num_speculative_tokens": 3}),
        ("draft:hf:org/small@v1:3", {"method": "draft_model", "model": "hf:org/small@v1", "num_speculative_tokens": 3}),
    ],
)
def test_speculation_becomes_the_engines_configuration(speculate: str, config: dict[str, Any]) -> None:
    flag, value = words(speculate=speculate)
    assert (flag, json.loads(value)) == ("--speculative-config", config)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_model_len": 0}, "max_model_len is from 1"),
        ({"tensor_parallel": -1}, "tensor_parallel is from 1"),
        ({"gpu_memory_utilisation": 1.2}, "between 0 and 1"),
        ({"scheduling_policy": "lifo"}, "priority, fcfs, not 'lifo'"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype is one of"),
        ({"speculate": "magic"}, "speculate is ngram"),
        ({"speculate": "ngram:0"}, "from 1 to 32"),
        ({"speculate": "ngram:99"}, "from 1 to 32"),
        ({"speculate": "ngram:4:5-2"}, "from MIN to MAX"),
        ({"speculate": "draft:small:3"}, "neither an absolute folder"),
        ({"speculate": "draft:hf:small:3"}, "are named hf:ORG/NAME"),
        ({"batch_cap": 512, "max_batched_tokens": 256}, r"max_batched_tokens \(256\) must not be below batch_cap \(512\)"),
        (
            {"chunked_prefill": False, "max_batched_tokens": 256, "max_model_len": 8192},
            "without chunked prefill a prompt must fit one step",
        ),
    ],
)
def test_what_no_engine_could_be_started_with_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        words(**options)


def test_options_and_flags_are_joined() -> None:
    args = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    assert joined(EngineOptions(max_model_len=512), args) == ["--max-model-len", "512", *args]


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({"max_model_len": 512}, ["--max-model-len", "1024"]),
        ({"max_model_len": 512}, ["--max_model_len=1024"]),
        ({"tensor_parallel": 2}, ["-tp", "4"]),
        ({"prefix_caching": True}, ["--no-enable-prefix-caching"]),
        ({"speculate": "ngram:4"}, ["-sc", "{}"]),
        ({"speculate": "ngram:4"}, ["--speculative-config.method", "ngram"]),
        ({}, ["--max-model-len", "1024", "--max-model-len", "2048"]),
        ({}, ["--enable-prefix-caching", "--no-enable-prefix-caching"]),
        ({}, ["-tp", "2", "--tensor-parallel-size", "4"]),
    ],
)
def test_a_setting_that_is_given_twice_is_refused(options: dict[str, Any], args: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"engine_args (must not set|set .* more than once)"):
        joined(EngineOptions(**options), args)


def test_flags_that_may_come_twice_may() -> None:
    args = ["--middleware", "a", "--middleware", "b"]
    assert joined(EngineOptions(), args) == args


def test_a_pools_arguments_stand_in_place_of_the_versions() -> None:
    version = ["--max-model-len", "2048", "--max-num-batched-tokens=256", "--enable-auto-tool-choice"]
    pool = ["--max-num-batched-tokens", "512", "--no-enable-prefix-caching"]
    assert over(version, pool) == ["--max-model-len", "2048", "--enable-auto-tool-choice", *pool]
    assert over(version, []) == version
    assert over(["-tp", "2"], ["--tensor-parallel-size", "4"]) == ["--tensor-parallel-size", "4"]


@pytest.mark.parametrize("args", [["--quantization", "fp8"], ["--dtype", "float16"], ["--chat-template", "x"], ["-q", "fp8"]])
def test_a_pool_cannot_change_what_its_version_answers(args: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"a pool cannot set .*: register a version with it"):
        check_pool_args(args)


DRAFTED = ["--max-model-len", "9", *EngineOptions(speculate="draft:hf:org/small@v1:3").words()]


def test_a_draft_model_is_staged_with_its_version_and_named_by_its_folder_when_the_engine_starts(tmp_path: Any) -> None:
    assert uris_of("hf:org/m@v1", DRAFTED) == ["hf:org/m@v1", "hf:org/small@v1"]
    found = with_local_draft(tuple(DRAFTED), tmp_path)
    assert found[:3] == ("--max-model-len", "9", "--speculative-config")
    assert json.loads(found[3]) == {
        "method": "draft_model",
        "model": str(tmp_path / "hf-org-small-v1"),
        "num_speculative_tokens": 3,
    }


@pytest.mark.parametrize("args", [[], ["--max-model-len", "9"], EngineOptions(speculate="ngram:3").words()])
def test_without_a_draft_there_is_nothing_more_to_stage(args: list[str], tmp_path: Any) -> None:
    assert draft_uri(tuple(args)) == ""
    assert with_local_draft(tuple(args), tmp_path) == tuple(args)


@pytest.mark.parametrize("args", [["--speculative-config", "{"], ["--speculative-config"], ["-sc", "[]"]])
def test_a_configuration_that_is_no_json_object_is_refused(args: list[str]) -> None:
    with pytest.raises(InvalidInput, match="takes one JSON object"):
        draft_uri(tuple(args))
