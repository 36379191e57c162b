"""Keep new replicas off a node, or let them on again."""

from django.db import transaction

from inference.errors import UnknownNode
from inference.models import NodeHeartbeat
from tenants.services.audit import record_audit


def set_cordon(*, node: str, is_cordoned: bool, actor: str) -> None:
    """What runs there goes on. Raises UnknownNode."""
    with transaction.atomic():
        rows = NodeHeartbeat.objects.filter(pk=node)
        if not rows.exists():
            raise UnknownNode(f"there is no node {node!r}; `manage.py status` lists them")
        if rows.exclude(is_cordoned=is_cordoned).update(is_cordoned=is_cordoned):
            record_audit(actor=actor, action="node.cordon" if is_cordoned else "node.uncordon", target=node)
