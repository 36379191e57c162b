"""Find the one API key of a request in its headers. What is found is never logged and never part of a message."""

from collections.abc import Sequence
from urllib.parse import parse_qsl

from inference.gateway.openai_errors import CredentialRefused

KEY_HEADERS = frozenset({b"x-api-key", b"api-key"})
KEY_QUERY_NAMES = frozenset({"api_key", "api-key", "apikey", "key", "access_token", "token"})
MAX_KEY_BYTES = 256
HOW_TO = "Send your API key as `Authorization: Bearer <key>`."
EMPTY = f"The API key is empty. {HOW_TO}"


def find_key(headers: Sequence[tuple[bytes, bytes]], query_string: bytes) -> str:
    """`Authorization: Bearer`, `x-api-key` or `api-key`; blanks around it do not matter. Raises CredentialRefused.

    The same key in two of the headers is one key; two different ones are refused.
    """
    refuse_key_in_url(query_string)
    authorizations = [value for name, value in headers if name == b"authorization"]
    if len(authorizations) > 1:
        raise CredentialRefused(f"There are {len(authorizations)} Authorization headers. {HOW_TO}")
    found = {_bearer(value) for value in authorizations} | {value.strip() for name, value in headers if name in KEY_HEADERS}
    if not found:
        raise CredentialRefused(f"There is no API key. {HOW_TO}")
    if b"" in found:
        raise CredentialRefused(EMPTY)
    if len(found) > 1:
        raise CredentialRefused(f"There are two different API keys. {HOW_TO}")
    return check_key(found.pop())


def check_key(key: bytes) -> str:
    """Could this be a key at all? Raises CredentialRefused."""
    if not key:
        raise CredentialRefused(EMPTY)
    if len(key) > MAX_KEY_BYTES:
        raise CredentialRefused("The API key is too long to be one of ours.")
    if not key.isascii():
        raise CredentialRefused("The API key has characters that none of ours has.")
    return key.decode("ascii")


def refuse_key_in_url(query_string: bytes) -> None:
    """A key in a URL ends in logs and histories. Raises CredentialRefused."""
    if query_string and any(name.lower() in KEY_QUERY_NAMES for name, _ in parse_qsl(query_string.decode("latin-1"), True)):
        raise CredentialRefused(f"API keys in URLs are refused: they end up in logs. Revoke this one. {HOW_TO}")


def _bearer(value: bytes) -> bytes:
    scheme, _, rest = value.strip().partition(b" ")
    if b"\t" in scheme:
        scheme, _, rest = value.strip().partition(b"\t")
    if scheme and scheme.lower() != b"bearer":
        raise CredentialRefused(f"This Authorization scheme is not supported. {HOW_TO}")
    return rest.strip()
