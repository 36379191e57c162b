from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.certificates import Certificates, serial_of
from headway.command import HeadwayCommand
from inference.node.node_files import NodeFiles


class Command(HeadwayCommand):
    help = (
        "Make the certificates of a further node, signed by this installation's authority. Copy the files it prints into "
        "tls/ of that node's HEADWAY_HOME (the authority's key stays here)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the node's name there (HEADWAY_NODE_NAME)")

    def handle(self, *, name: str, json: bool, **_options: Any) -> None:
        NodeFiles.check_name(name)
        certificates = Certificates(settings.HOME.tls)
        gateway, node, dispatcher = (
            certificates.ensure_gateway(),
            certificates.ensure_node(name),
            certificates.ensure_dispatcher(),
        )
        files = {
            "authority": str(certificates.authority.certificate),
            "certificate": str(node.certificate),
            "key": str(node.key),
            "gateway_certificate": str(gateway.certificate),
            "gateway_key": str(gateway.key),
            "dispatcher_certificate": str(dispatcher.certificate),
            "dispatcher_key": str(dispatcher.key),
        }
        paths = list(files.values())
        lines = [*paths[:3], "and, where a gateway runs there too:", *paths[3:5]]
        lines += ["and, where a dispatcher listens there (HEADWAY_DISPATCHER_LISTEN=tls://...):", *paths[5:]]
        serials = {"serial": f"{serial_of(node) or 0:x}", "gateway_serial": f"{serial_of(gateway) or 0:x}"}
        lines += [f"serial numbers: {serials['serial']}, of the gateways' {serials['gateway_serial']}"]
        self.print_result("\n".join(lines), files | serials, as_json=json)
