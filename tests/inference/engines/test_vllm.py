from pathlib import Path

import pytest

from headway.errors import ConfigurationError, InvalidInput
from inference.engines.environments import EngineKind, find_environment
from inference.engines.vllm import (
    TAG_VARIABLE,
    EngineSettings,
    ServerSpec,
    parse_metrics,
    server_arguments,
    server_environment,
)


def arguments(*engine_args: str, kind: EngineKind = EngineKind.CPU) -> list[str]:
    spec = ServerSpec(
        kind=kind,
        weights=Path("/w"),
        served_name="org/m",
        socket=Path("/run/r.sock"),
        dtype="float32",
        max_num_seqs=8,
        engine_args=engine_args,
    )
    return list(server_arguments(spec, EngineSettings()))


def value_of(words: list[str], flag: str) -> str:
    assert words.count(flag) == 1, words
    return words[words.index(flag) + 1]


def test_a_cpu_server_gets_small_steps_small_blocks_and_a_shutdown_timeout() -> None:
    words = arguments()
    assert value_of(words, "--uds") == "/run/r.sock"
    assert value_of(words, "--served-model-name") == "org/m"
    assert value_of(words, "--block-size") == "32"
    assert value_of(words, "--max-num-batched-tokens") == "256"
    assert value_of(words, "--max-num-seqs") == "8"
    assert int(value_of(words, "--shutdown-timeout")) > 0
    assert "--enforce-eager" in words


def test_a_cuda_server_is_compiled_and_sizes_its_own_cache() -> None:
    words = arguments(kind=EngineKind.CUDA)
    assert "--enforce-eager" not in words
    assert "--kv-cache-memory-bytes" not in words
    assert "--shutdown-timeout" in words


def test_a_versions_arguments_take_the_place_of_defaults() -> None:
    words = arguments("--max_num_batched_tokens=128", "--no-enforce-eager", "--tool-call-parser", "hermes")
    assert value_of(words, "--max-num-batched-tokens") == "128"
    assert "--enforce-eager" not in words
    assert "--no-enforce-eager" in words
    assert value_of(words, "--tool-call-parser") == "hermes"


@pytest.mark.parametrize(
    "words",
    [
        ["--uds", "/tmp/x"],
        ["--host=0.0.0.0"],
        ["--port", "80"],
        ["--api_key", "k"],
        ["--served-model-name", "other"],
        ["--served", "other"],  # the engine's parser takes the beginning of a flag for the flag
        ["--model=/elsewhere"],
        ["--config", "/some.yaml"],
        ["--enable-log-requests"],
        ["serve"],
    ],
)
def test_what_the_agent_owns_is_refused_with_the_flags_name(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match=words[0].split("=")[0].replace("_", "-")):
        arguments(*words)


def test_our_secrets_and_the_kv_variable_do_not_reach_an_engine() -> None:
    base = {"PATH": "/bin", "DATABASE_URL": "postgresql://u:p@h/d", "HEADWAY_SECRET_KEY": "s", "VLLM_CPU_KVCACHE_SPACE": "40"}
    environment = server_environment(EngineKind.CPU, tag="id/node", cache=Path("/c"), settings=EngineSettings(), base=base)
    assert environment["PATH"] == "/bin"
    assert environment[TAG_VARIABLE] == "id/node"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    assert not environment.keys() & {"DATABASE_URL", "HEADWAY_SECRET_KEY", "VLLM_CPU_KVCACHE_SPACE"}


def test_metrics_are_summed_over_engines_and_missing_ones_count_as_nothing() -> None:
    text = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1e+02
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 6.0
"""
    load = parse_metrics(text)
    assert (load.num_running, load.num_waiting, load.progress) == (5, 0, 107.0)


def test_the_share_of_proposed_tokens_that_were_right_is_read_and_is_nothing_without_speculation() -> None:
    text = """vllm:spec_decode_num_drafts_total{engine="0"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 80.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 25.0
"""
    load = parse_metrics(text)
    assert (load.proposed_tokens, load.accepted_tokens, load.acceptance_ratio) == (120, 30, 0.25)
    assert load.progress == 0.0
    assert parse_metrics("").acceptance_ratio is None
    assert parse_metrics(text.replace("80.0", "0.0").replace("40.0", "0.0")).acceptance_ratio is None


def test_an_environment_is_found_by_its_name_and_its_kind_stands_in_it(tmp_path: Path) -> None:
    (tmp_path / "vllm-cpu-1/bin").mkdir(parents=True)
    (tmp_path / "vllm-cpu-1/bin/python").touch()
    found = find_environment("vllm-cpu-1", tmp_path)
    assert (found.kind, found.python) == (EngineKind.CPU, tmp_path / "vllm-cpu-1/bin/python")


@pytest.mark.parametrize("name", ["vllm-cpu-2", "vllm-1", "../vllm-cpu-1", "", "vllm-cpu-cuda-1"])
def test_an_unknown_environment_is_a_reason_a_person_understands(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="engine environment"):
        find_environment(name, tmp_path)
