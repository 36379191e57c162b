"""Counts of pieces of prompts that were made before, so that a conversation's earlier messages are not tokenised again.

Exact where it is used: `tokenizers` first cuts a text at its special tokens and then treats each piece by itself, whatever
stands before or after it (AddedVocabulary.extract_and_normalize). A text cut at those tokens therefore has the sum of its
pieces' counts. The one exception we know, a pre-tokeniser that marks only the beginning of the text, is left out.
"""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import msgspec

# A 16-byte key, a small number and their places in the table.
ENTRY_BYTES = 280
# Shorter pieces are tokenised in less time than it takes to look for them.
MIN_CHARS = 64
MAX_MARKS = 512


class SegmentMemory:
    """Hashes and numbers, never text; least recently used go first. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_entries = max_bytes // ENTRY_BYTES
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def recall(self, keys: list[bytes]) -> list[int | None]:
        with self._lock:
            for key in keys:
                if key in self._counts:
                    self._counts.move_to_end(key)
            return [self._counts.get(key) for key in keys]

    def keep(self, counts: dict[bytes, int]) -> None:
        with self._lock:
            self._counts.update(counts)
            while len(self._counts) > self._max_entries:
                self._counts.popitem(last=False)


def key_of(text: str, *, salt: bytes) -> bytes:
    """`salt` (at most 64 bytes) is the tenant's and the tokeniser's: a count that is found is quicker than one that is made,
    which must not tell what others have sent."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=salt).digest()


class _Mark(msgspec.Struct):
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def reaches_out(self) -> bool:
        """Does what it is depend on, or take from, the text beside it?"""
        return self.lstrip or self.rstrip or self.single_word


class _Described(msgspec.Struct):
    """The small part of a tokenizer.json that is looked at here."""

    added_tokens: list[_Mark] = []
    pre_tokenizer: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Described)


class Cutter:
    """Cuts a text at special tokens, each at the beginning of a piece."""

    def __init__(self, tokenizer_json: str) -> None:
        described = _decoder.decode(tokenizer_json)
        marks = [mark for mark in described.added_tokens if not mark.normalized]
        self._plain = {mark.content for mark in marks if mark.special and not mark.reaches_out}
        is_apt = bool(self._plain) and len(marks) <= MAX_MARKS and not _marks_beginnings(described.pre_tokenizer)
        # The longest first, as the library matches them; those that are not cut at must be seen all the same.
        contents = sorted((mark.content for mark in marks), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, contents))) if is_apt else None

    def cut(self, text: str) -> list[str]:
        """Pieces that make up the text."""
        if self._marks is None:
            return [text]
        places = [match.start() for match in self._marks.finditer(text) if match[0] in self._plain and match.start()]
        bounds = [0, *places, len(text)]
        return [text[start:end] for start, end in pairwise(bounds)]


def _marks_beginnings(pre_tokenizer: Any) -> bool:
    return '"prepend_scheme": "first"' in json.dumps(pre_tokenizer)
