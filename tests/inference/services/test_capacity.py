"""`manage.py capacity`: of a folder, of a version, of numbers."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from headway.home import Home
from inference.services.registry import register_model, register_version
from inference.services.version_spec import VersionSpec

CONFIG = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
SEVENTY = ("--params-b", "70", "--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--weights-dtype", "fp8")


def model_folder(path: Path, config: dict[str, Any] = CONFIG, *, shape: tuple[int, ...] = (1000, 500)) -> Path:
    """The header of its one tensor is all that is read."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 8]}})
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 8)
    return path


def capacity(*words: str) -> dict[str, Any]:
    printed = io.StringIO()
    call_command("capacity", *words, "--json", stdout=printed)
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def refusal(*words: str) -> str:
    with pytest.raises(CommandError) as refused:
        call_command("capacity", *words, stdout=io.StringIO())
    return str(refused.value)


def test_the_example_of_70b_prints_its_figures() -> None:
    printed = io.StringIO()
    call_command("capacity", *SEVENTY, "--kv-dtype", "fp8", "--gpu", "h100-80", "--gpus", "8", stdout=printed)
    assert "70.0 GB" in printed.getvalue()
    assert "160.0 KiB" in printed.getvalue()
    assert "3,121," in printed.getvalue()


def test_what_does_not_fit_is_one_line_with_the_reason() -> None:
    reason = refusal("--params-b", "70", *SEVENTY[2:8], "--gpu", "h100-80")
    assert reason == "it does not fit: its weights take 140.0 GB, and one GPU has 72.7 GB for them"


def test_a_folder_says_itself_what_it_takes(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    found = capacity("--model", str(folder), "--kv-cache-mib", "256", "--block-tokens", "32")
    assert (found["weights_bytes"], found["cache_tokens"], found["context_tokens"]) == (1_000_000, 11_648, 8192)
    found = capacity("--model", str(folder), "--kv-cache-mib", "256", "--weights-dtype", "float32")
    assert found["weights_bytes"] == 2_000_000


def test_quantised_weights_take_what_their_files_take(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {**CONFIG, "quantization_config": {"quant_method": "awq"}})
    found = capacity("--model", str(folder), "--kv-cache-mib", "256")
    assert found["weights_bytes"] == (folder / "model.safetensors").stat().st_size


def test_a_text_model_inside_another_is_found_and_a_head_size_of_its_own_counts(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {"model_type": "x", "text_config": {**CONFIG, "head_dim": 128}})
    found = capacity("--model", str(folder), "--kv-cache-mib", "512")
    assert found["kv_bytes_per_token"]["bfloat16"] == 2 * 30 * 3 * 128 * 2


@pytest.mark.django_db
def test_a_version_is_measured_with_its_own_arguments(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    spec = VersionSpec(weights_uri=str(folder), engine_environment="vllm-cpu-9.9.9", engine_args=["--max-model-len", "512"])
    register_model(public_id="m", actor="test", version=spec)
    args = ["--max-model-len=1024", "--kv-cache-dtype", "fp8_e4m3", "-tp", "3"]
    register_version(public_id="m", spec=VersionSpec(str(folder), "vllm-cpu-9.9.9", engine_args=args), actor="test")
    with override_settings(HOME=Home(tmp_path / "home")):
        first = capacity("--model", "m", "--kv-cache-mib", "256")
        second = capacity("--model", "m:v2", "--kv-cache-mib", "256")
        assert "has no version 'v3'" in refusal("--model", "m:v3", "--kv-cache-mib", "256")
        assert "there is no model 'other'" in refusal("--model", "other", "--kv-cache-mib", "256")
    assert (first["context_tokens"], first["kv_format"]) == (512, "bfloat16")
    assert (second["context_tokens"], second["kv_format"]) == (1024, "fp8")


@pytest.mark.django_db
def test_a_version_that_is_not_staged_here_has_no_figures_yet(tmp_path: Path) -> None:
    register_model(public_id="m", actor="test", version=VersionSpec("hf:org/name@main", "vllm-cpu-9.9.9"))
    with override_settings(HOME=Home(tmp_path / "home")):
        assert "is not staged on this machine" in refusal("--model", "m", "--kv-cache-mib", "256")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "give --model, or --params-b too"),
        (SEVENTY[:4], "--kv-heads too"),
        (SEVENTY, "give either --gpu or --kv-cache-mib"),
        ((*SEVENTY, "--gpu", "h100-80", "--gpus", "0"), "--gpus must lie between"),
        ((*SEVENTY, "--gpu", "h100-80", "--utilisation", "1.5"), "--utilisation must lie"),
        (("--params-b", "-1", *SEVENTY[2:], "--gpu", "h100-80"), "--params-b must be above 0"),
        (("--model", "/nowhere", "--gpu", "h100-80"), "not a folder with a model"),
        (("--model", "/nowhere", "--layers", "3", "--gpu", "h100-80"), "goes without --model"),
    ],
)
def test_questions_without_an_answer_are_refused(words: tuple[str, ...], reason: str) -> None:
    assert reason in refusal(*words)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "does not say"),
        ({**CONFIG, "num_attention_heads": 0}, "does not say"),
        ({**CONFIG, "layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
    ],
)
def test_a_folder_that_cannot_be_computed_is_refused(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    folder = model_folder(tmp_path / "m", config)
    assert reason in refusal("--model", str(folder), "--kv-cache-mib", "256")


def test_a_damaged_weights_file_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    assert "is no safetensors file" in refusal("--model", str(folder), "--kv-cache-mib", "256")
