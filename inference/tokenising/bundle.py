"""A version's tokeniser as one content-addressed object: all that is needed to count a prompt as its engine does.

Made on a node from the engine environment's own view of the weights, checked against the engine's answers when a replica
is certified (check.py), kept in the database under the SHA-256 of its bytes, copied by each gateway.
"""

import hashlib
from typing import Any, Literal

import msgspec

ContentFormat = Literal["string", "openai"]


class TokeniserBundle(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="headway-tokeniser-1"):
    tokenizer_json: str
    """For `tokenizers.Tokenizer.from_str`: post-processor and added tokens included."""
    special_tokens: dict[str, Any]
    """What templates know them by: `bos_token`, `eos_token`, ..."""
    chat_template: str | None = None
    tool_template: str | None = None
    """Takes the other's place where tools are given (the template named `tool_use`)."""
    template_kwargs: dict[str, Any] = {}
    """The server's --default-chat-template-kwargs."""
    drops_unused_tools: bool = False
    """The server's --exclude-tools-when-tool-choice-none."""
    max_chars_per_token: int = 1
    content_format: ContentFormat = "string"
    """Whether the template is given a message's parts as one text or as a list."""
    counts_chat: bool = False
    counts_parts: bool = False
    counts_tools: bool = False
    counts_prompts: bool = False
    """What was shown to be counted as the engine counts it; nothing else may be."""

    @property
    def counts_anything(self) -> bool:
        return self.counts_chat or self.counts_prompts


class NotABundle(Exception):
    """Certify a replica again; these bytes are no tokeniser of ours, or not one that this release can read."""


def encode_bundle(bundle: TokeniserBundle) -> bytes:
    return msgspec.json.encode(bundle, order="sorted")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_decoder = msgspec.json.Decoder(TokeniserBundle)


def decode_bundle(content: bytes) -> TokeniserBundle:
    """Raises NotABundle."""
    try:
        return _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise NotABundle(str(error)) from None
