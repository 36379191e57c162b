"""Which certificates this gateway trusts no more: fetched on the thread that carries records to the ledger, kept in a file.

The file is what TLS contexts are made of (headway/fresh_context.py), and what a start with the database away finds.
"""

import structlog
from django.db import DatabaseError, InterfaceError, connection

from headway.revocation import Revocations
from inference.services.revocations import fetch_revocations

log = structlog.get_logger(__name__)
ROUNDS = 4
"""Of the thread, between two looks: half a second each."""


class Trust:
    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations
        self._round = 0

    def look(self) -> None:
        self._round += 1
        if self._round % ROUNDS != 1:
            return
        try:
            if fetch_revocations(self._revocations):
                log.info("certificates_revoked")
        except (DatabaseError, InterfaceError):
            connection.close()  # the next look makes another
        except OSError as error:
            log.error("revocations_not_kept", reason=error.strerror)
