"""How a gateway on another machine reaches an engine: `tls://host:port/<replica>-<epoch>.<node's domain>`.

The last part is the name it asks for in the TLS handshake: it says which engine of the node is meant, and is checked
against the node's certificate, so that nobody but that very node answers for its engines.
"""

from dataclasses import dataclass

from headway.certificates import node_domain


@dataclass(frozen=True)
class Wanted:
    replica: str
    epoch: int


def remote_url(address: str, *, node: str, replica: str, epoch: int) -> str:
    return f"tls://{address}/{replica}-{epoch}.{node_domain(node)}"


def wanted_of(name: str | None, *, node: str) -> Wanted | None:
    """From the name in a handshake; None: it is none of that node's."""
    label, dot, domain = (name or "").lower().partition(".")
    replica, dash, epoch = label.rpartition("-")
    if not dot or domain != node_domain(node) or not dash or not replica or not (epoch.isascii() and epoch.isdigit()):
        return None
    return Wanted(replica, int(epoch))
