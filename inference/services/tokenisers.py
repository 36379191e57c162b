"""Tokenisers by digest: nodes put them here, gateways on any machine take them."""

import zlib

from inference.models import Tokeniser


def keep_tokeniser(*, digest: str, content: bytes) -> None:
    """Once; the same bytes again change nothing. `digest` is their SHA-256."""
    if not Tokeniser.objects.filter(pk=digest).exists():
        Tokeniser.objects.get_or_create(pk=digest, defaults={"content": zlib.compress(content, 6)})


def tokeniser_content(digest: str) -> bytes | None:
    """The bytes whose SHA-256 this is, if it is known here."""
    stored = Tokeniser.objects.filter(pk=digest).values_list("content", flat=True).first()
    return None if stored is None else zlib.decompress(bytes(stored))
