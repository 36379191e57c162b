"""What fits, against figures that are known: the issue's example, and what vLLM 0.32 itself reported (ENGINE.md)."""

from dataclasses import replace

import pytest

from inference.policy.capacity import GPU_BYTES, MIB, Capacity, DoesNotFit, Machine, Shape, capacity, kv_bytes_per_token

LLAMA_70B_FP8 = Shape(weights_bytes=70 * 10**9, layers=80, kv_heads=8, head_dim=128, attention_heads=64)
EIGHT_H100 = Machine(gpus=8, gpu_bytes=GPU_BYTES["h100-80"])
SMOLLM2 = Shape(weights_bytes=269 * 10**6, layers=30, kv_heads=3, head_dim=64, attention_heads=9, max_context_tokens=8192)


def fitting(shape: Shape, machine: Machine, *, kv_format: str = "bfloat16", context_tokens: int = 0) -> Capacity:
    found = capacity(shape, machine, kv_format=kv_format, context_tokens=context_tokens)
    assert isinstance(found, Capacity), found
    return found


def why_not(shape: Shape, machine: Machine, *, context_tokens: int = 0) -> str:
    found = capacity(shape, machine, kv_format="bfloat16", context_tokens=context_tokens)
    assert isinstance(found, DoesNotFit), found
    return found.reason


def test_70b_in_fp8_on_eight_h100_has_about_500_gb_left_and_3_million_tokens() -> None:
    found = fitting(LLAMA_70B_FP8, EIGHT_H100, kv_format="fp8", context_tokens=8192)
    assert found.kv_bytes_per_token["fp8"] == 160 * 1024
    assert 480e9 < found.left_bytes < 540e9
    assert 2.9e6 < found.cache_tokens < 3.3e6
    assert found.sequences == found.cache_tokens // 8192


def test_smollm2_has_the_tokens_that_vllm_reports_for_256_mib() -> None:
    found = fitting(SMOLLM2, Machine(cache_bytes=256 * MIB, block_tokens=32))
    assert (found.kv_bytes_per_token["bfloat16"], found.cache_tokens) == (23_040, 11_648)


def test_the_cache_holds_whole_blocks_and_a_sequence_takes_whole_blocks() -> None:
    token_bytes = kv_bytes_per_token(SMOLLM2, "bfloat16")
    machine = Machine(cache_bytes=token_bytes * 32 * 7 + token_bytes * 31, block_tokens=32)
    found = fitting(SMOLLM2, machine, context_tokens=33)
    assert (found.cache_tokens, found.sequences) == (7 * 32, 3)


@pytest.mark.parametrize(("gpus", "heads"), [(1, 8), (4, 8), (8, 8), (16, 16), (64, 64)])
def test_kv_heads_are_copied_where_there_are_more_gpus_than_heads(gpus: int, heads: int) -> None:
    assert kv_bytes_per_token(LLAMA_70B_FP8, "fp8", gpus=gpus) == 2 * 80 * heads * 128


def test_a_latent_cache_is_kept_whole_by_each_gpu() -> None:
    deepseek = Shape(weights_bytes=1, layers=61, kv_heads=128, head_dim=56, latent_size=512 + 64)
    assert kv_bytes_per_token(deepseek, "bfloat16") == 61 * 576 * 2
    assert kv_bytes_per_token(deepseek, "bfloat16", gpus=8) == 8 * 61 * 576 * 2


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    bf16 = replace(LLAMA_70B_FP8, weights_bytes=140 * 10**9)
    assert why_not(bf16, replace(EIGHT_H100, gpus=1)) == "its weights take 140.0 GB, and one GPU has 72.7 GB for them"
    assert isinstance(capacity(bf16, replace(EIGHT_H100, gpus=2), kv_format="fp8", context_tokens=0), Capacity)


def test_a_context_that_no_sequence_could_fill_is_refused_with_the_tokens_there_are() -> None:
    one_gpu = replace(EIGHT_H100, gpus=1)
    reason = why_not(LLAMA_70B_FP8, one_gpu, context_tokens=32_768)
    assert "one sequence of 32,768 tokens needs 10.7 GB of KV cache, and 2.7 GB are left" in reason
    assert isinstance(capacity(LLAMA_70B_FP8, one_gpu, kv_format="bfloat16", context_tokens=8_000), Capacity)


@pytest.mark.parametrize(
    ("shape", "machine", "context_tokens", "reason"),
    [
        (SMOLLM2, Machine(gpus=2, gpu_bytes=GPU_BYTES["l4-24"]), 0, "9 attention heads cannot be shared out over 2 GPUs"),
        (replace(SMOLLM2, attention_heads=0), Machine(gpus=2, gpu_bytes=10**10), 0, "3 KV heads cannot be shared out"),
        (SMOLLM2, Machine(cache_bytes=MIB), 9000, "the model's context is 8,192 tokens, not 9,000"),
        (replace(SMOLLM2, max_context_tokens=0), Machine(cache_bytes=1000), 0, "not one block of 16 tokens"),
    ],
)
def test_what_no_engine_would_start_with_is_refused(shape: Shape, machine: Machine, context_tokens: int, reason: str) -> None:
    assert reason in why_not(shape, machine, context_tokens=context_tokens)
