"""Certificates that are good no more: signed where the authority's key is, brought to every machine by the database."""

from django.db import IntegrityError, transaction
from django.utils import timezone

from headway.errors import Conflict
from headway.revocation import Revocations
from inference.fleet_models import CertificateRevocations
from tenants.services.audit import record_audit


def revoke_certificate(*, revocations: Revocations, serial: int, name: str, actor: str, reason: str = "") -> int:
    """Returns the new list's number. One that is on the list already is no error.

    Raises ConfigurationError where the authority's key is not, Conflict where somebody else revokes at the same moment.
    """
    here = revocations.current()
    number, serials = (0, frozenset[int]()) if here is None else (here.number, here.serials)
    try:
        with transaction.atomic():
            fetch_revocations(revocations)  # what another has added
            here = revocations.current()
            if here is not None:
                number, serials = here.number, serials | here.serials
            newest = CertificateRevocations.objects.order_by("-number").values_list("number", flat=True).first()
            number = max(number, newest or 0) + 1
            pem = revocations.sign(serials | {serial}, number=number)
            CertificateRevocations.objects.create(number=number, pem=pem.decode(), made_at=timezone.now(), made_by=actor[:200])
            after = {"serial": f"{serial:x}", "name": name, "reason": reason, "list": number}
            record_audit(actor=actor, action="certificate.revoke", target=name or f"{serial:x}", after=after)
    except IntegrityError:
        raise Conflict("somebody revokes another certificate at this moment: try again") from None
    revocations.accept(pem)
    return number


def fetch_revocations(revocations: Revocations) -> bool:
    """Keep the newest list here, if it is newer than the one that is. Whether it was."""
    here = revocations.current()
    rows = CertificateRevocations.objects.order_by("-number")
    newest = rows.filter(number__gt=0 if here is None else here.number).first()
    return newest is not None and revocations.accept(newest.pem.encode())
