"""A form that makes something makes it once, however often it is posted: a double click, a reload, two at the same moment.

Each time such a form is drawn it has a nonce of its own; who posts it claims the nonce in the transaction that makes the
thing. A post that is refused claims nothing, so the same form can be corrected and sent again.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from dashboard.errors import FormAlreadySent
from dashboard.models import FormClaim
from headway.errors import InvalidInput

FIELD = "form_nonce"
KEPT = timedelta(days=30)
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


def new_nonce() -> str:
    return secrets.token_hex(16)


def checked_nonce(nonce: str) -> str:
    """Raises InvalidInput where it is none of ours."""
    if not _NONCE.fullmatch(nonce):
        raise InvalidInput("this form is not as this site sent it: send it once more")
    return nonce


@contextlib.contextmanager
def claimed(nonce: str) -> Iterator[None]:
    """Around what the form makes. Two posts at once: the second waits for the first, then raises FormAlreadySent.

    Raises InvalidInput where no nonce was sent.
    """
    nonce = checked_nonce(nonce)
    with transaction.atomic():
        try:
            with transaction.atomic():
                FormClaim.objects.create(nonce=nonce)
        except IntegrityError:
            raise FormAlreadySent("this form was sent already; nothing was made twice") from None
        yield


def forget_old_claims() -> int:
    return FormClaim.objects.filter(made_at__lt=timezone.now() - KEPT).delete()[0]
