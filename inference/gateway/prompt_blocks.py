"""What a prompt begins with, as a chain of hashes: routing compares them to find the replica that has read it before.

The blocks are of the text, about as long as `RoutingTunables.block_tokens` tokens, in one form for all routes: a
conversation keeps its replica whichever of them it comes by. Each hash stands for all text up to it, under the tenant's
salt: equal texts of two tenants have nothing in common.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from inference.tokenising.counter import prompts_of

# About what 128 tokens of English take; of other languages a block holds more tokens, or fewer.
BLOCK_BYTES = 512
MAX_BLOCKS = 1024


def blocks_of(api: str, fields: dict[str, Any], salt: str) -> tuple[int, ...]:
    """Of a request's first prompt; whole blocks only. `fields` as requests.py checked them."""
    data = _chat(fields) if api == "chat" else _prompt(fields)
    chain, blocks = salt.encode(), []
    for at in range(0, min(len(data) - BLOCK_BYTES + 1, MAX_BLOCKS * BLOCK_BYTES), BLOCK_BYTES):
        chain = blake2b(data[at : at + BLOCK_BYTES], digest_size=8, key=chain[:64]).digest()
        blocks.append(int.from_bytes(chain))
    return tuple(blocks)


def _chat(fields: dict[str, Any]) -> bytes:
    """Tools come first, as in the templates that know them."""
    tools = fields.get("tools")
    parts = [msgspec.json.encode(tools)] if tools else []
    for message in fields["messages"]:
        content = message.get("content")
        text = content.encode() if isinstance(content, str) else msgspec.json.encode(message)
        parts += (message["role"].encode(), b"\0", text, b"\0")
    return b"".join(parts)


def _prompt(fields: dict[str, Any]) -> bytes:
    first = prompts_of(fields["prompt"])[0]
    return first.encode() if isinstance(first, str) else msgspec.json.encode(first)
