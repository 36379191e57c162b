"""Makes a random Llama of 2 layers for tests: boots in seconds, thousands of tokens a second. Runs in an engine environment.

    bin/python make_tiny.py TOKENISER_FOLDER TARGET_FOLDER SEED

Its next-token distributions are peaked (large weights), so that damage shows in the log-probabilities and greedy text
depends on the whole prompt. Tokens whose bytes are not printable text on their own get no weight: every answer is whole
UTF-8, and as the end-of-text token is among them, an answer runs until a limit or a stop string ends it.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
HIDDEN_SIZE = 64
EMBEDDING_STD = 1.0
PROJECTION_STD = 0.25
# Logits have a standard deviation of HEAD_STD * sqrt(HIDDEN_SIZE) = 6.4 over 49,152 tokens.
HEAD_STD = 0.8


def is_text(tokenizer, token_id: int, special: set[int]) -> bool:
    if token_id in special:
        return False
    text = tokenizer.decode([token_id])
    return bool(text) and "\ufffd" not in text and all(character.isprintable() or character == "\n" for character in text)


def main(tokenizer_folder: Path, target: Path, seed: int) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    random = torch.Generator().manual_seed(seed)
    special = set(tokenizer.all_special_ids)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 2:
                std = EMBEDDING_STD if "embed_tokens" in name else HEAD_STD if "lm_head" in name else PROJECTION_STD
                weight.copy_(torch.randn(weight.shape, generator=random) * std)
        mute = [token_id for token_id in range(len(tokenizer)) if not is_text(tokenizer, token_id, special)]
        model.lm_head.weight[torch.tensor(mute)] = 0.0
    model.generation_config.do_sample = False
    model.save_pretrained(target, safe_serialization=True)
    for name in TOKENIZER_FILES:
        if (tokenizer_folder / name).exists():
            shutil.copyfile(tokenizer_folder / name, target / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
