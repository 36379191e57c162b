"""Certificates of ours that are not good any more: `crl.pem` beside the others, signed by the authority.

A list counts if this folder's authority has signed it, so it may come from anywhere (services/revocations.py brings it by
the database). The one with the highest number is the newest.
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headway.errors import ConfigurationError
from headway.key_files import write_file

LIST_DAYS = 3650
"""Nobody makes a new one but to add to it: it holds as long as the authority."""


@dataclass(frozen=True)
class Listed:
    number: int
    serials: frozenset[int]
    """Of the certificates."""


class Revocations:
    """Those of one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "crl.pem"
        self._authority, self._authority_key = folder / "ca.pem", folder / "ca.key"

    def current(self) -> Listed | None:
        """None: nothing was revoked here, or not by the authority that is here now."""
        try:
            return self._read(self.path.read_bytes())
        except (OSError, ValueError):
            return None

    def accept(self, pem: bytes) -> bool:
        """Keep it, if it is the authority's and newer than what is here. Whether it was kept."""
        try:
            found = self._read(pem)
        except (OSError, ValueError):
            return False
        now = self.current()
        if now is not None and now.number >= found.number:
            return False
        write_file(self.path, pem)
        return True

    def sign(self, serials: Collection[int], *, number: int) -> bytes:
        """A new list, as PEM. Raises ConfigurationError where the authority's key is not."""
        try:
            key = serialization.load_pem_private_key(self._authority_key.read_bytes(), None)
        except FileNotFoundError:
            raise ConfigurationError(f"the authority's key is not here ({self._authority_key}): revoke where it is") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey), "we made it"
        # Clocks differ: it holds from an hour ago.
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate().subject)
        builder = builder.last_update(now).next_update(now + datetime.timedelta(days=LIST_DAYS))
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        for serial in sorted(serials):
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _read(self, pem: bytes) -> Listed:
        """Raises ValueError for what is no list of this authority's, OSError where there is none."""
        found = x509.load_pem_x509_crl(pem)
        key = self._certificate().public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey), "we made it"
        if not found.is_signature_valid(key):
            raise ValueError("it is not signed by our authority")
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return Listed(number, frozenset(entry.serial_number for entry in found))

    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self._authority.read_bytes())
