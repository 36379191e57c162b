"""What an engine does, as a few numbers: the time of one step, and what its KV cache holds.

A step takes

    step_s + decode_sequence_s * sequences (+ crowd_sequence_s for each beyond `crowd_from`) + kv_token_s * KV tokens read
           + sum over prefill chunks of tokens * (prefill_token_s + prefill_context_s * tokens that stand before them)

Left out: network, tokenising, sampling parameters, CUDA graph sizes, speculative decoding, swapping to the host's memory.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineProfile:
    name: str
    kv_tokens: int
    """Tokens that the KV cache holds."""
    step_s: float
    """Of a step in which nothing is computed: weights read, kernels launched, all-reduces waited for."""
    prefill_token_s: float
    decode_sequence_s: float
    kv_token_s: float
    """For every token of KV that a decoding sequence reads."""
    prefill_context_s: float = 0.0
    """Attention: for each pair of a prefilled token and a token before it."""
    crowd_from: int = 0
    """Decoding sequences up to which a step is bound by reading the weights (roofline knee)."""
    crowd_sequence_s: float = 0.0
    """For every decoding sequence beyond `crowd_from`, on top of `decode_sequence_s`."""
    kv_block_tokens: int = 16
    max_sequences: int = 256
    """Running at once (vLLM: max_num_seqs)."""
    step_budget_tokens: int = 2048
    """Tokens a step may compute, decoding ones first (vLLM: max_num_batched_tokens)."""

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        """A step that only decodes."""
        crowd = max(0, sequences - self.crowd_from)
        return self.step_s + self.decode_sequence_s * sequences + self.crowd_sequence_s * crowd + self.kv_token_s * kv_tokens

    def prefill_s(self, tokens: int, context_tokens: int) -> float:
        """What a chunk of `tokens` behind `context_tokens` adds to its step; pairs inside the chunk count half."""
        return tokens * (self.prefill_token_s + self.prefill_context_s * (context_tokens + tokens / 2))

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of an engine that does nothing else, at short contexts."""
        return self.step_budget_tokens / (self.step_s + self.prefill_s(self.step_budget_tokens, 0))


LLAMA_70B_8XH100 = EngineProfile(
    name="70b-8xh100",
    kv_tokens=3_000_000,
    step_s=0.012,
    prefill_token_s=33e-6,
    prefill_context_s=5e-10,
    decode_sequence_s=50e-6,
    kv_token_s=10e-9,
)
"""70B with grouped-query attention (80 layers, 8 KV heads of 128), FP8 weights and KV, tensor parallel on 8 H100.

KV: issue 7 (500 GB left beside the weights, 160 KB a token: about 3 M tokens). Assumed, from the machine's figures (1,979 dense
FP8 TFLOPS and 3.35 TB/s a GPU), not measured by us: prefill 140 GFLOP a token at 27 % of the peak = 33 us, so 25,300 tokens/s
alone at a budget of 2,048 and about 23,000 at prompts of 8,000 (attention 2.6 MFLOP a pair at 65 % of the BF16 peak = 5e-10 s;
FlashAttention-3 reports 75 %).
Step: 70 GB of weights at 70 % of 26.8 TB/s = 4 ms, 160 all-reduces of 20-30 us = 4 ms, the rest launches and the sampler.
KV read: 160 KB at 60 % of 26.8 TB/s = 10 ns. 64 sequences of 12,000 tokens then decode in 23 ms a step, 32 in 17 ms."""

LLAMA_8B_H100 = EngineProfile(
    name="8b-h100",
    kv_tokens=400_000,
    step_s=0.007,
    prefill_token_s=36e-6,
    prefill_context_s=1.3e-9,
    decode_sequence_s=25e-6,
    kv_token_s=56e-9,
)
"""8B (32 layers, 8 KV heads of 128), BF16 on one H100. Assumed the same way: 52 GB left for KV at 131 KB a token = 400,000;
16 GFLOP a token at 45 % of 989 TFLOPS = 36 us; 16 GB of weights at 3.35 TB/s and 70 % = 7 ms; 131 KB at 70 % = 56 ns."""

SMOLLM2_135M_CPU = EngineProfile(
    name="smollm2-cpu",
    kv_tokens=11_648,
    step_s=0.0341,
    prefill_token_s=1 / 780,
    decode_sequence_s=0.5e-3,
    crowd_from=8,
    crowd_sequence_s=1.4e-3,
    kv_token_s=2e-6,
    kv_block_tokens=32,
    max_sequences=16,
)
"""SmolLM2-135M in BF16 on 2 CPU cores, fitted to DESIGN section 8 and the table of ENGINE.md section 3 (prompts of 64, outputs
of 128 tokens): 35 ms a token alone, 8 streams at 40 ms and 174 tokens/s, 16 at 57 ms and 234; first token after 0.12 s alone,
0.7 s among 8, 1.36 s among 16, so 780 tokens/s of prefill. KV: `--kv-cache-memory-bytes 256M` (ENGINE.md section 0)."""

PRESETS = {profile.name: profile for profile in (LLAMA_70B_8XH100, LLAMA_8B_H100, SMOLLM2_135M_CPU)}
