"""Certificates of `lipt certs`: an authority, the certificates that it signs, and their folder.

All keys are EC on P-256: gRPC takes no Ed25519. An authority signs certificates and nothing else,
and no further authorities; a coordinator's certificate serves only servers, a peer's only clients,
so that none of them can stand for another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lipt.common.access import Role
from lipt.common.access.tls import (
    SCORES_URI,
    PemFile,
    extension_of,
    read_certificates,
    read_key,
    require_key,
    role_uri,
    shown,
)
from lipt.common.blobs.files import directory_lock
from lipt.common.errors import ConfigError
from lipt.trainer.files import replacing

# Clocks of two machines differ by less.
_BACKDATED = timedelta(hours=1)
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
# A common name has at most 64 characters, and this one is a file's name as well.
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# File names of the authority and of the coordinator.
AUTHORITY, COORDINATOR = "ca", "coordinator"
_CERT_MODE, _KEY_MODE, _FOLDER_MODE = 0o644, 0o600, 0o700


@dataclass(frozen=True)
class Pair:
    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes = field(repr=False)


def make_authority(*, now: datetime, days: int) -> Pair:
    """A self-signed certificate that signs others for so many days."""
    # Names differ: one file may hold two authorities while one replaces the other.
    name = f"LiPT authority {x509.random_serial_number() % 16**8:08x}"
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    times = (now - _BACKDATED, now + timedelta(days=days))
    return _signed(name, times, [constraints, _usage(signs_certificates=True)], None)


def issue_server(authority: Pair, hosts: Sequence[str], *, now: datetime, days: int) -> Pair:
    names = [_host(host) for host in hosts]
    return _issue(authority, COORDINATOR, names, [ExtendedKeyUsageOID.SERVER_AUTH], now, days)


def issue_client(
    authority: Pair,
    name: str,
    role: Role,
    *,
    hosts: Sequence[str] = (),
    now: datetime,
    days: int,
    scores: bool = False,
) -> Pair:
    """A peer's certificate; with hosts it serves as well, and with `scores` it may score."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name of 1 to 64 letters, digits, dots, hyphens and underscores "
            "that begins with a letter or a digit. Example: gpu-1"
        )
    if name in {AUTHORITY, COORDINATOR}:
        raise ConfigError(f"{name!r} is what another file is called. Choose another name.")
    uris = [role_uri(role), *([SCORES_URI] if scores else [])]
    names = [*map(x509.UniformResourceIdentifier, uris), *map(_host, hosts)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return _issue(authority, name, names, usages, now, days)


def _issue(
    authority: Pair,
    name: str,
    names: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    now: datetime,
    days: int,
) -> Pair:
    signer = authority.certificate
    begins, ends = signer.not_valid_before_utc, signer.not_valid_after_utc
    if not begins <= now < ends:
        raise ConfigError(
            f"the authority ended at {shown(ends)} UTC, or begins later. "
            "Make another with: lipt certs init --force"
        )
    extensions = [
        x509.BasicConstraints(ca=False, path_length=None),
        _usage(signs_certificates=False),
        x509.ExtendedKeyUsage(usages),
        x509.SubjectAlternativeName(names),
        _identifier(authority),
    ]
    times = (max(now - _BACKDATED, begins), min(now + timedelta(days=days), ends))
    return _signed(name, times, extensions, authority)


def _signed(
    name: str,
    times: tuple[datetime, datetime],
    extensions: Sequence[x509.ExtensionType],
    authority: Pair | None,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(times[0])
        .not_valid_after(times[1])
    )
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *extensions):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    return Pair(builder.sign(key if authority is None else authority.key, SHA256()), key)


def _identifier(authority: Pair) -> x509.AuthorityKeyIdentifier:
    named = extension_of(authority.certificate, x509.SubjectKeyIdentifier)
    if named is None:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(
            f"--host {host!r} is not a host's name or IP address. Give it without port, scheme "
            "or brackets, such as head.example.org, 10.0.0.5 or ::1"
        )
    return x509.DNSName(host)


class Folder:
    """Files of an authority ("ca") and of the certificates that it signed: NAME.pem and NAME.key.

    Keys and a new folder are their user's alone. A file is whole or not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def cert(self, name: str) -> Path:
        return self.path / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.path / f"{name}.key"

    def authority(self) -> Pair:
        """The authority, which `lipt certs` need not have made."""
        cert, key = self.cert(AUTHORITY), self.key(AUTHORITY)
        if not cert.is_file() or not key.is_file():
            raise ConfigError(
                f"{self.path} has no authority (ca.pem and ca.key). Make one with: lipt certs init "
                f"--folder {self.path}"
            )
        cert_pem = PemFile.read("the authority's certificate", cert)
        key_pem = PemFile.read("the authority's key", key)
        require_key(key_pem, cert_pem)
        certificate, private = read_certificates(cert_pem)[0], read_key(key_pem)
        constraints = extension_of(certificate, x509.BasicConstraints)
        signs = constraints is not None and constraints.ca
        if not signs or not isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ConfigError(
                f"{cert} is not an authority's certificate: it may not sign others. Put an "
                "authority there, or name a folder that has one."
            )
        return Pair(certificate, private)

    def hosts(self, name: str) -> list[str]:
        """The hosts of a certificate; empty without any."""
        path = self.cert(name)
        if not path.is_file():
            return []
        certificate = read_certificates(PemFile.read("the certificate", path))[0]
        names = extension_of(certificate, x509.SubjectAlternativeName) or ()
        return [
            str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
        ]

    def require_free(self, names: Iterable[str], *, force: bool) -> None:
        for name in names:
            for path in (self.key(name), self.cert(name)):
                if os.path.lexists(path) and not force:
                    raise ConfigError(
                        f"{path} is there already, and is left as it is. Choose another name or "
                        "folder, or replace it with --force."
                    )

    def write(self, name: str, pair: Pair) -> None:
        self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        # Unencrypted: a service starts without a password.
        key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # One writer at a time, so that two renewals leave one of their pairs. The key first: a
        # certificate is there only when its key is.
        with directory_lock(self.path, exclusive=True):
            with replacing(self.key(name), mode=_KEY_MODE) as temporary:
                temporary.write_bytes(key)
            with replacing(self.cert(name), mode=_CERT_MODE) as temporary:
                temporary.write_bytes(pair.certificate.public_bytes(Encoding.PEM))
