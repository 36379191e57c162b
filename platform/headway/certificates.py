"""Our own certificate authority: gateways and nodes know each other by what it has signed, and by nothing else.

ca.pem, ca.key                      made on first use, for ten years
gateway.pem, gateway.key            what gateways show to nodes: good for clients alone
dispatcher.pem, dispatcher.key      what whoever decides shows to gateways of other machines, wherever it is (TLS between them)
node-<name>.pem, node-<name>.key    what a node shows to gateways: good for servers alone, under its `node_domain`
crl.pem                             those that are good no more (revocation.py)

Keys are elliptic (P-256), files have mode 0600. The authority's key is needed where certificates are made, nowhere else.
"""

import datetime
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headway.errors import ConfigurationError
from headway.fresh_context import FreshContext
from headway.key_files import write_file
from headway.revocation import Revocations

AUTHORITY_DAYS = 3650
LEAF_DAYS = 825
RENEW_DAYS = 90
"""With less left, `ensure` makes a new one."""
DOMAIN = "headway.internal"
DISPATCHER_NAME = f"dispatcher.{DOMAIN}"
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class KeyPair:
    certificate: Path
    key: Path


def serial_of(pair: KeyPair) -> int | None:
    """Of the certificate that is there; None: none is."""
    try:
        return x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number
    except FileNotFoundError:
        return None


def node_domain(node: str) -> str:
    """What a node's names end with; a name may hold what host names may not."""
    return f"{hashlib.sha256(node.encode()).hexdigest()[:16]}.{DOMAIN}"


class Certificates:
    """Those of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.revocations = folder, Revocations(folder)

    @property
    def authority(self) -> KeyPair:
        return self._pair("ca")

    def gateway(self) -> KeyPair:
        return self._pair("gateway")

    def node(self, name: str) -> KeyPair:
        return self._pair(f"node-{name}")

    def ensure_gateway(self) -> KeyPair:
        return self._ensure(self.gateway(), "gateway", CLIENT, [])

    def dispatcher(self) -> KeyPair:
        return self._pair("dispatcher")

    def ensure_dispatcher(self) -> KeyPair:
        return self._ensure(self.dispatcher(), "dispatcher", SERVER, [DISPATCHER_NAME])

    def ensure_node(self, name: str) -> KeyPair:
        return self._ensure(self.node(name), name, SERVER, [f"*.{node_domain(name)}"])

    def client_tls(self) -> FreshContext:
        """`client_context`, of the files as they are whenever it is asked for."""
        return FreshContext(self.client_context, self._files(self.gateway()))

    def server_tls(self, node: str) -> FreshContext:
        return FreshContext(lambda: self.server_context(node), self._files(self.node(node)))

    def to_dispatcher_tls(self) -> FreshContext:
        """For who connects to a dispatcher: it is believed by its certificate, and believes whoever knows the secret."""
        return FreshContext(self._to_dispatcher_context, [self.authority.certificate, self.revocations.path])

    def dispatcher_context(self) -> ssl.SSLContext:
        """Of a dispatcher. Made where the authority's key is, if it is not there. Raises ConfigurationError."""
        if not self.dispatcher().certificate.exists() and self.authority.key.exists():
            self.ensure_dispatcher()
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.dispatcher())

    def _to_dispatcher_context(self) -> ssl.SSLContext:
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), None)

    def client_context(self) -> ssl.SSLContext:
        """A gateway's. Raises ConfigurationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._loaded(context, self.gateway())

    def server_context(self, node: str) -> ssl.SSLContext:
        """A node's: who shows no certificate of ours for clients is sent away. Raises ConfigurationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._loaded(context, self.node(node))

    def _files(self, pair: KeyPair) -> list[Path]:
        return [self.authority.certificate, pair.certificate, pair.key, self.revocations.path]

    def _loaded(self, context: ssl.SSLContext, pair: KeyPair | None) -> ssl.SSLContext:
        """`pair` None: nothing is shown, the authority alone is needed."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.authority.certificate)
            if self.revocations.current() is not None:
                context.load_verify_locations(self.revocations.path)
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
            if pair is not None:
                context.load_cert_chain(pair.certificate, pair.key)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"no certificate to be used in {self.folder} ({(pair or self.authority).certificate.name}: {reason}): "
                "make it with manage.py node_certificate"
            ) from error
        return context

    def _pair(self, name: str) -> KeyPair:
        return KeyPair(self.folder / f"{name}.pem", self.folder / f"{name}.key")

    def _ensure(self, pair: KeyPair, name: str, use: x509.ObjectIdentifier, names: list[str]) -> KeyPair:
        """Make it unless there is one that will do for a while. Raises ConfigurationError where there is no authority's key."""
        ca_certificate, ca_key = self._ensure_authority()
        if self._is_good(pair, ca_certificate):
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, ca_certificate.subject, key, LEAF_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
            builder = builder.add_extension(alternatives, critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        _write(pair, key, builder.sign(ca_key, hashes.SHA256()))
        return pair

    def _ensure_authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        pair = self.authority
        if not pair.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = _name("Headway authority")
            usage = x509.KeyUsage(
                digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            )  # fmt: skip
            builder = _builder("Headway authority", subject, key, AUTHORITY_DAYS)
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            builder = builder.add_extension(usage, critical=True)
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            _write(pair, key, builder.sign(key, hashes.SHA256()))
        try:
            found = serialization.load_pem_private_key(pair.key.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        except FileNotFoundError:
            raise ConfigurationError(f"the authority's key is not here ({pair.key}): make it where it is") from None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the authority's files ({pair.certificate}, {pair.key}) cannot be read: {error}"
            ) from None
        if not isinstance(found, ec.EllipticCurvePrivateKey) or found.public_key() != certificate.public_key():
            raise ConfigurationError(f"{pair.key} is not the key of {pair.certificate}: one of them is another authority's")
        return certificate, found

    def _is_good(self, pair: KeyPair, authority: x509.Certificate) -> bool:
        if not (pair.certificate.exists() and pair.key.exists()):
            return False
        try:
            certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):  # another authority's, or no certificate at all
            return False
        listed = self.revocations.current()
        if listed is not None and certificate.serial_number in listed.serials:
            return False
        return certificate.not_valid_after_utc > _now() + datetime.timedelta(days=RENEW_DAYS)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write(pair: KeyPair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """The key first: a certificate without one would be taken for whole."""
    kept = serialization.PrivateFormat.PKCS8
    write_file(pair.key, key.private_bytes(serialization.Encoding.PEM, kept, serialization.NoEncryption()))
    write_file(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
