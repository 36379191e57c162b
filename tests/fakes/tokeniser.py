"""A tokeniser for tests that fits on a page: a token a byte of UTF-8, and one for each mark of its chat template."""

from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from inference.tokenising.bundle import TokeniserBundle
from inference.tokenising.counter import PromptCounter

# A chat costs 1 (begin), and each message 3 (start, end, line) and its role and content; the model's turn 2 and its role.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}|{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if tools %}<|start|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant|{% endif %}"
)
MARKS = ("<|begin|>", "<|start|>", "<|end|>")


def byte_tokeniser() -> Tokenizer:
    vocabulary = {char: number for number, char in enumerate(sorted(ByteLevel.alphabet()))}
    made = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return made


def merging_tokeniser(text: str) -> Tokenizer:
    """Byte pairs learnt from a text, so that what stands beside a word counts."""
    made = byte_tokeniser()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator([text] * 20, trainer)
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return made


def byte_bundle(**changes: Any) -> TokeniserBundle:
    made: dict[str, Any] = {
        "tokenizer_json": byte_tokeniser().to_str(),
        "special_tokens": {"bos_token": "<|begin|>"},
        "chat_template": TEMPLATE,
        "max_chars_per_token": max(map(len, MARKS)),
        "counts_chat": True,
        "counts_parts": True,
        "counts_tools": True,
        "counts_prompts": True,
    }
    return TokeniserBundle(**(made | changes))


def byte_counter(**changes: Any) -> PromptCounter:
    return PromptCounter(byte_bundle(**changes))


def size_of_chat(*contents: str, role: str = "user") -> int:
    """Of messages of one role, with the model's turn at the end."""
    turn = 1 + len("assistant|")
    return 1 + sum(3 + len(role) + 1 + len(content.encode()) for content in contents) + turn
