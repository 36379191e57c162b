from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.certificates import Certificates, KeyPair, serial_of
from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from inference.node.node_files import NodeFiles
from inference.services.revocations import revoke_certificate


class Command(HeadwayCommand):
    help = (
        "Make a certificate of a node, or the gateways', good for nothing any more: gateways and nodes refuse it within "
        "seconds. Run it where the authority's key is. A new one is made in its place; copy what it prints, as for "
        "node_certificate."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", default="", help="the node's name")
        parser.add_argument("--gateway", action="store_true", help="that of the gateways, which share one")
        parser.add_argument("--dispatcher", action="store_true", help="that of dispatchers, which share one")
        parser.add_argument("--serial", type=_hex, help="one that is in no file here: its serial number (hexadecimal)")
        parser.add_argument("--no-new", action="store_true", help="make none in its place")
        parser.add_argument("--reason", default="", help="goes into the audit log")

    def handle(self, *, name: str, serial: int | None, no_new: bool, reason: str, json: bool, **which: Any) -> None:
        shared = next((each for each in ("gateway", "dispatcher") if which[each]), "")
        if [bool(name), which["gateway"], which["dispatcher"], serial is not None].count(True) != 1:
            raise InvalidInput("say which: a node's name, --gateway, --dispatcher or --serial")
        certificates = Certificates(settings.HOME.tls)
        pair, make = _pair(certificates, name, shared)
        if serial is None:
            serial = serial_of(pair)
            if serial is None:
                raise InvalidInput(f"there is no {pair.certificate}: give its --serial")
            shown = name or shared
        else:
            shown, no_new = "", True
        number = revoke_certificate(
            revocations=certificates.revocations, serial=serial, name=shown, actor=actor(), reason=reason
        )
        found: dict[str, Any] = {"serial": f"{serial:x}", "list": number}
        lines = [f"{shown or 'certificate'} {serial:x} is revoked: gateways and nodes refuse it within seconds"]
        if not no_new:
            new = make()
            found |= {"certificate": str(new.certificate), "key": str(new.key)}
            lines += ["in its place, to be copied where it is needed:", str(new.certificate), str(new.key)]
        self.print_result("\n".join(lines), found, as_json=json)


def _pair(certificates: Certificates, name: str, shared: str) -> tuple[KeyPair, Callable[[], KeyPair]]:
    """Its files, and what makes new ones. Raises InvalidInput for what is no node's name."""
    if name:
        NodeFiles.check_name(name)
        return certificates.node(name), lambda: certificates.ensure_node(name)
    if shared == "dispatcher":
        return certificates.dispatcher(), certificates.ensure_dispatcher
    return certificates.gateway(), certificates.ensure_gateway


def _hex(text: str) -> int:
    return int(text.replace(":", ""), 16)
