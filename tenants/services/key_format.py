"""The text of an API key: `hw_live_<id>_<secret>_<check>`. Pure.

id: 12 characters, visible; secret: 43 characters (256 bits); check: 6 characters, the CRC-32 of all before it, so a
typo is refused without a look-up and a secret scanner can tell a leaked key from noise. Alphabet: 0-9 A-Z a-z.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX = "hw_live_"
ID_CHARS = 12
SECRET_CHARS = 43
CHECK_CHARS = 6
_PATTERN = re.compile(r"hw_live_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})", re.ASCII)


@dataclass(frozen=True)
class ParsedKey:
    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        body = f"{PREFIX}{self.id}_{self.secret}"
        return f"{body}_{_check(body)}"

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def matches(self, secret_sha256: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def new_key() -> ParsedKey:
    return ParsedKey(id=_random_text(ID_CHARS), secret=_random_text(SECRET_CHARS))


def parse_key(text: str) -> ParsedKey | None:
    """The key's parts, or None when the text is not a key of ours (shape or checksum)."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        return None
    key_id, secret, check = found.groups()
    if _check(f"{PREFIX}{key_id}_{secret}") != check:
        return None
    return ParsedKey(id=key_id, secret=secret)


def _random_text(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _check(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECK_CHARS):
        number, rest = divmod(number, len(ALPHABET))
        digits = ALPHABET[rest] + digits
    return digits
