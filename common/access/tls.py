"""TLS: addresses, certificates, credentials and their renewal."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID, ObjectIdentifier

from lipt.common.access import Role
from lipt.common.errors import ConfigError
from lipt.common.text import printable


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port. Example: 127.0.0.1:50051")
    bare = host.removeprefix("[").removesuffix("]")
    if (":" in host) != (host == f"[{bare}]"):
        raise ConfigError(
            f"address {address!r} does not say where its host ends. Put an IPv6 address, and no "
            "other host, into brackets: [::1]:50051"
        )
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_deliberate_exposure(
    listen: str, tls: TlsFiles | None, *, insecure: bool, flag: str = "--listen"
) -> None:
    """Refuse to listen beyond this machine without TLS unless `insecure`."""
    host, _ = split_address(listen)
    encrypted = tls is not None and tls.cert is not None
    if not is_loopback(host) and not encrypted and not insecure:
        raise ConfigError(
            f"{flag} {listen} is reachable from other machines and there is no TLS. Give "
            "--tls-cert and --tls-key, or --insecure where the network keeps strangers out."
        )


# Warn when a certificate has fewer days left.
SOON_DAYS = 14

_CERT, _KEY, _CA = "--tls-cert", "--tls-key", "--tls-ca"
# gRPC's only message when a server refuses or misses our certificate.
_CLOSED = "Socket closed"

logger = logging.getLogger(__name__)

ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)


@dataclass(frozen=True)
class PemFile:
    """The content of a PEM file, and the option that named it."""

    flag: str
    path: Path
    content: bytes

    @classmethod
    def read(cls, flag: str, path: Path) -> PemFile:
        try:
            return cls(flag, path, path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{flag} {path} cannot be read: {error.strerror}. Give the path of a PEM file."
            ) from None

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"


def require_key(key: PemFile, cert: PemFile) -> None:
    """Refuse a key that is unusable or belongs to another certificate."""
    private = read_key(key)
    if isinstance(private, Ed25519PrivateKey | Ed448PrivateKey):
        raise ConfigError(
            f"{key} is an Edwards curve's, which gRPC does not take. Use an EC key on P-256 or RSA."
        )
    if private.public_key() != read_certificates(cert)[0].public_key():
        raise ConfigError(f"{key} does not belong to {cert}. Give the pair that was made together.")


def read_certificates(pem: PemFile) -> list[x509.Certificate]:
    """A file's certificates, at least one."""
    try:
        return x509.load_pem_x509_certificates(pem.content)
    except ValueError as error:
        raise ConfigError(
            f"{pem} holds no certificate ({_reason(error)}). Give a PEM file."
        ) from None


def extension_of(certificate: x509.Certificate, kind: type[ExtensionT]) -> ExtensionT | None:
    """A certificate's extension of a kind, if it has one."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def read_key(pem: PemFile) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem.content, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{pem} holds no private key ({_reason(error)}). Give the certificate's, unencrypted: "
            f"openssl pkey -in {pem.path} -out PLAIN"
        ) from None


def _require_valid(pem: PemFile, certificate: x509.Certificate, now: datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        what = "has expired" if now > end else "is not valid yet"
        raise ConfigError(
            f"{pem} {what}: it is valid from {shown(begin)} to {shown(end)} UTC, and now it is "
            f"{shown(now)}. Renew it, or set this machine's clock."
        )


def shown(time: datetime) -> str:
    """The time to the minute, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _reason(error: Exception) -> str:
    return str(error).split(". See ", maxsplit=1)[0].rstrip(".")


utc_now = partial(datetime.now, UTC)


@dataclass(frozen=True)
class TlsContents:
    """The checked contents of TLS files, as PEM."""

    cert: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    ca: bytes | None = field(repr=False)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """The server's certificate, and the authority for its clients."""
        if self.cert is None or self.key is None:
            raise ConfigError("a server needs --tls-cert and --tls-key; --tls-ca adds mTLS.")
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.cert)], root_certificates=self.ca
        )


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; with `ca`, a server requires client certificates (mTLS)."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @classmethod
    def from_options(
        cls,
        cert: Path | None,
        key: Path | None,
        ca: Path | None,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> Self | None:
        """The files of `--tls-cert --tls-key --tls-ca`, checked; None without any."""
        if cert is None and key is None and ca is None:
            return None
        if (cert is None) != (key is None):
            given, missing = (_CERT, _KEY) if cert else (_KEY, _CERT)
            raise ConfigError(f"{given} was given without {missing}: a certificate needs its key.")
        files = cls(cert=cert, key=key, ca=ca)
        files.read(now())
        return files

    def read(self, now: datetime) -> TlsContents:
        """The current contents, checked here because gRPC reports little about a bad file."""
        cert, key, ca = (
            None if path is None else PemFile.read(flag, path)
            for flag, path in ((_CERT, self.cert), (_KEY, self.key), (_CA, self.ca))
        )
        if cert is not None and key is not None:
            _require_valid(cert, read_certificates(cert)[0], now)
            require_key(key, cert)
        if ca is not None:
            # The file may still contain older authorities.
            longest = max(read_certificates(ca), key=lambda each: each.not_valid_after_utc)
            _require_valid(ca, longest, now)
        return TlsContents(*(None if pem is None else pem.content for pem in (cert, key, ca)))

    def closing_hint(self, details: str) -> str:
        """Why a coordinator may have closed a client's connection, or ""."""
        if _CLOSED not in details:
            return ""
        if self.cert is None:
            return f"It closes so where it asks for a client certificate: give {_CERT} and {_KEY}."
        return f"{_CERT} {self.cert} may not be of the authority that its {_CA} names."

    def expires_at(self) -> datetime | None:
        """The expiry of this process's certificate, if any."""
        certificate = self._certificate()
        return None if certificate is None else certificate.not_valid_after_utc

    def dns_names(self) -> list[str]:
        """The host names of this process's certificate, without addresses."""
        certificate = self._certificate()
        names = certificate and extension_of(certificate, x509.SubjectAlternativeName)
        return [name.value for name in names or () if isinstance(name, x509.DNSName)]

    def _certificate(self) -> x509.Certificate | None:
        if self.cert is None:
            return None
        return read_certificates(PemFile.read(_CERT, self.cert))[0]

    def expires_soon(self, now: datetime | None = None) -> str:
        """A warning if this process's certificate expires soon, or ""."""
        end = self.expires_at()
        days = SOON_DAYS if end is None else (end - (now or utc_now())).days
        if end is None or days >= SOON_DAYS:
            return ""
        return f"{_CERT} {self.cert} expires in {days} days, on {shown(end)} UTC. Renew it."


Stamp: TypeAlias = tuple[int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Differs once the file was written or replaced; None if it is missing."""
    with suppress(OSError):
        stats = path.stat()
        return stats.st_mtime_ns, stats.st_size, stats.st_ino
    return None


class Renewal:
    """Follows changed TLS files; invalid or mismatched ones leave the previous contents in use."""

    def __init__(self, files: TlsFiles, *, now: Callable[[], datetime] = utc_now) -> None:
        self._files, self._now = files, now
        self._paths = [path for path in (files.cert, files.key, files.ca) if path is not None]
        self._lock = threading.Lock()
        # Before reading, so that a concurrent change is noticed.
        self._used = self._refused = self._stamps()
        self._contents = files.read(now())

    def current(self) -> TlsContents:
        """The contents to use now; the same object until they change."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._used:
                self._renew(stamps)
            return self._contents

    def _renew(self, stamps: list[Stamp | None]) -> None:
        try:
            contents = self._files.read(self._now())
        except ConfigError as error:
            # Retried at every call: it may not be valid yet.
            if stamps != self._refused:
                logger.warning("%s What was read before stays in use.", error)
            self._refused = stamps
            return
        self._used = stamps
        if contents != self._contents:
            self._contents = contents
            names = ", ".join(map(str, self._paths))
            logger.info("new connections use the new content of %s", names)

    def _stamps(self) -> list[Stamp | None]:
        return list(map(stamp_of, self._paths))


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """A server's credentials, renewed for each connection."""
    renewal = Renewal(files)
    shown = renewal.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        contents = renewal.current()
        if contents is shown:
            return None
        shown = contents
        return contents.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        shown.server_configuration(),
        changed,  # type: ignore[arg-type]  # the stubs know of no None, which gRPC documents
        require_client_authentication=files.ca is not None,
    )


def served_url(host: str, port: int, *, encrypted: bool) -> str:
    """The URL of a server for this machine, or for those that reach it."""
    everywhere = host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
    name = socket.gethostname() if everywhere else host
    shown = f"[{name}]" if ":" in name else name
    return f"{'https' if encrypted else 'http'}://{shown}:{port}"


def server_context(tls: TlsFiles | None, *, asks_peers: bool) -> ssl.SSLContext | None:
    """An HTTPS server's context; None without TLS. `asks_peers` requires client certificates."""
    if tls is None or tls.cert is None:
        return None
    cert, key, ca = tls.cert, tls.key, tls.ca if asks_peers else None
    renewal = Renewal(replace(tls, ca=ca))

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if ca is not None:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    used = renewal.current(), load()

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        nonlocal used
        if (newest := renewal.current()) is not used[0]:
            try:
                used = newest, load()
            except OSError:  # replaced once more
                logger.debug("TLS files change while they are read", exc_info=True)
        connection.context = used[1]

    context = load()
    context.sni_callback = choose
    return context


# Identity: an authority gives roles in either of two fields of a client certificate.
#
#     SAN, URI:     lipt:role:worker    lipt:role:trainer    lipt:role:admin
#     subject, OU:  lipt-worker         lipt-trainer         lipt-admin
#
# `lipt:scores` or `lipt-scores` beside it lets workers score examples. gRPC checks the authority
# and the dates before a call arrives.

# gRPC's key of a peer's certificate, without its chain.
_PEM = "x509_pem_cert"


@dataclass(frozen=True)
class CertificateIdentity:
    """The identity in a certificate.

    name: the common name, else the first DNS name or URI that is no role, else part of `sha256`.
    sha256: of the certificate (DER), in hexadecimal.
    expires_at, begins_at: seconds since 1970; None for an unreadable certificate.
    scores: whether its workers may score examples.
    """

    name: str
    sha256: str
    roles: frozenset[Role]
    expires_at: float | None = None
    scores: bool = False
    begins_at: float | None = None


def role_uri(role: Role) -> str:
    """A role's URI, for a certificate's subject alternative names."""
    return f"lipt:role:{role}"


def role_unit(role: Role) -> str:
    """A role's organizational unit, for a certificate's subject."""
    return f"lipt-{role}"


SCORES_URI, _SCORES_UNIT = "lipt:scores", "lipt-scores"
_BY_URI = {role_uri(role): role for role in Role}
_BY_UNIT = {role_unit(role): role for role in Role}


def identity_of(auth_context: Mapping[str, Iterable[bytes]]) -> CertificateIdentity | None:
    """A caller's identity; None without a certificate."""
    pem = next(iter(auth_context.get(_PEM, ())), None)
    if pem is None:
        return None
    sha256 = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = _subject(certificate, NameOID.COMMON_NAME)
        units = _subject(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)
        alternatives = extension_of(certificate, x509.SubjectAlternativeName) or ()
    # gRPC accepts forms that cryptography refuses: they give no role.
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return CertificateIdentity(sha256[:16], sha256, frozenset())
    names += [name.value for name in alternatives if isinstance(name, x509.DNSName)]
    uris = [name.value for name in alternatives if isinstance(name, x509.UniformResourceIdentifier)]
    names += [uri for uri in uris if uri not in _BY_URI and uri != SCORES_URI]
    roles = {_BY_UNIT[unit] for unit in units if unit in _BY_UNIT}
    roles |= {_BY_URI[uri] for uri in uris if uri in _BY_URI}
    name = next(filter(None, names), sha256[:16])
    return CertificateIdentity(
        printable(name),
        sha256,
        frozenset(roles),
        certificate.not_valid_after_utc.timestamp(),
        SCORES_URI in uris or _SCORES_UNIT in units,
        certificate.not_valid_before_utc.timestamp(),
    )


def _subject(certificate: x509.Certificate, part: ObjectIdentifier) -> list[str]:
    values = (attribute.value for attribute in certificate.subject.get_attributes_for_oid(part))
    return [value for value in values if isinstance(value, str)]
