from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.certificates import Certificates
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
        gateway, node = certificates.ensure_gateway(), certificates.ensure_node(name)
        files = {
            "authority": str(certificates.authority.certificate),
            "certificate": str(node.certificate),
            "key": str(node.key),
            "gateway_certificate": str(gateway.certificate),
            "gateway_key": str(gateway.key),
        }
        lines = [*list(files.values())[:3], "and, where a gateway runs there too:", *list(files.values())[3:]]
        self.print_result("\n".join(lines), files, as_json=json)
