"""Where webhooks may go: to addresses of the public Internet, and to nothing inside.

A name is looked up once for each attempt; the connection goes to the address that was checked (so a name that changes
between check and use changes nothing), and redirects are not followed.
"""

import ipaddress
import re
import socket
from urllib.parse import SplitResult, urlsplit

from headway.errors import InvalidInput
from workers.errors import TryLater

MAX_URL_CHARS = 500
USUAL_PORTS = (80, 443)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE | re.ASCII)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressInside(InvalidInput):
    """Use an address of the public Internet."""

    code = "address_not_public"


def check_url(url: str) -> str:
    """Raises InvalidInput; AddressInside for an address (not a name) that is not public."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput("this is no URL", param="url") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or len(url) > MAX_URL_CHARS:
        raise InvalidInput(f"a webhook's URL is https://host/path, at most {MAX_URL_CHARS} characters", param="url")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidInput("a webhook's URL has no user name, password or fragment", param="url")
    if not url.isascii() or any(character.isspace() or ord(character) < 0x20 for character in url):
        raise InvalidInput("a webhook's URL has ASCII characters only, without blanks", param="url")
    if port is not None and port not in USUAL_PORTS and port < 1024:
        raise InvalidInput("a webhook's port is 443, 80 or one from 1024 on", param="url")
    _check_host(parts.hostname)
    return url


def _check_host(host: str) -> None:
    """Raises AddressInside, InvalidInput: also for what resolvers take for an address though it is not written as one."""
    address = _address(host)
    if address is not None and is_public(address):
        return
    labels = host.split(".")
    if address is not None or host.rstrip(".").split(".")[-1] == "localhost":
        raise AddressInside("webhooks go to public addresses only", param="url")
    if not all(labels):
        raise InvalidInput("a webhook's host has no empty parts between its dots", param="url")
    if _NUMBER.fullmatch(labels[-1]):
        raise InvalidInput("write a webhook's address as usual, such as 203.0.113.7", param="url")


def resolve_public(parts: SplitResult) -> tuple[str, int]:
    """The address and port to connect to. Raises TryLater, AddressInside when any of the name's addresses is not public."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise TryLater(f"the name {host} has no address") from None
    addresses = [_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    if not addresses or not all(address is not None and is_public(address) for address in addresses):
        raise AddressInside(f"the name {host} leads to an address that is not public", param="url")
    return str(addresses[0]), port


def is_public(address: _Address) -> bool:
    """What carries an IPv4 address inside (mapped, 6to4, NAT64, Teredo) counts as that address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (
        address.is_multicast
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_reserved
        or address.is_unspecified
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
