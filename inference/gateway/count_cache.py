"""Prompt counts that were made before, by a hash of what was counted: no text, and nothing another tenant could time."""

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

# A 16-byte key, two small numbers and their places in the table.
ENTRY_BYTES = 320

# What a count depends on.
_COUNTED = (
    "messages",
    "prompt",
    "suffix",
    "tools",
    "tool_choice",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)


class Counts(NamedTuple):
    """Tokens of all prompts of a request, and of its longest."""

    total: int
    longest: int


class CountCache:
    """Least recently used go first; used on the event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_entries = max_bytes // ENTRY_BYTES
        self._counts: OrderedDict[bytes, Counts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, key: bytes) -> Counts | None:
        counts = self._counts.get(key)
        if counts is not None:
            self._counts.move_to_end(key)
        return counts

    def put(self, key: bytes, counts: Counts) -> None:
        self._counts[key] = counts
        self._counts.move_to_end(key)
        while len(self._counts) > self._max_entries:
            self._counts.popitem(last=False)


def key_of(fields: dict[str, Any], *, tokeniser: str, salt: str) -> bytes:
    """16 bytes. `salt` is the tenant's: a hit is quicker, which must not tell what others have sent."""
    counted = [fields.get(name) for name in _COUNTED]
    hashed = hashlib.blake2b(f"{tokeniser} {salt}\n".encode(), digest_size=16)
    hashed.update(msgspec.json.encode(counted))
    return hashed.digest()
