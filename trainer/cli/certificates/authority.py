"""Authority: the certificates that `lipt certs` makes, as values.

All keys are EC on P-256: gRPC takes no Ed25519. An authority signs certificates and nothing else,
and no further authorities; a coordinator's certificate serves only servers, a peer's only clients,
so that none of them can stand for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificatePublicKeyTypes,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lipt.common.access.certificate import role_uri
from lipt.common.access.roles import Role
from lipt.common.errors import ConfigError
from lipt.common.network.tls import shown

# Clocks of two machines differ by less.
_BACKDATED = timedelta(hours=1)
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
# A common name has at most 64 characters, and this one is a file's name as well.
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What the authority's own files and the coordinator's are called.
AUTHORITY, COORDINATOR = "ca", "coordinator"


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes = field(repr=False)

    def cert_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        """The key as PEM, PKCS #8, unencrypted: a service has nobody to type a password."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_authority(*, now: datetime, days: int) -> Pair:
    """A self-signed certificate that signs others for so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities of one name, in one file while the one replaces the other, confuse people.
    name = _name(f"LiPT authority {x509.random_serial_number() % 16**8:08x}")
    made = (
        _builder(name, name, key.public_key())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Pair(made.sign(key, SHA256()), key)


def issue_server(authority: Pair, hosts: Sequence[str], *, now: datetime, days: int) -> Pair:
    """A coordinator's certificate.

    Args:
        authority: who signs.
        hosts: names and addresses that peers reach it by.
        now: this moment.
        days: how long it counts; never beyond its authority.

    Raises:
        ConfigError: a host that is none, or an authority whose time is over.
    """
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
) -> Pair:
    """A worker's, trainer's or admin's certificate.

    Args:
        authority: who signs.
        name: what the coordinator calls the peer.
        role: what it may do.
        hosts: names and addresses under which it serves metrics; with any it serves servers too.
        now: this moment.
        days: how long it counts; never beyond its authority.

    Raises:
        ConfigError: a name or host that is none, or an authority whose time is over.
    """
    require_name(name)
    names = [x509.UniformResourceIdentifier(role_uri(role)), *map(_host, hosts)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return _issue(authority, name, names, usages, now, days)


def require_name(name: str) -> None:
    """Refuse what could be no peer's and no file's name.

    Raises:
        ConfigError: it is empty, too long, taken, or holds other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name of 1 to 64 letters, digits, dots, hyphens and underscores "
            "that begins with a letter or a digit. Example: gpu-1"
        )
    if name in {AUTHORITY, COORDINATOR}:
        raise ConfigError(f"{name!r} is what another file is called. Choose another name.")


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate was made for, in their order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def _issue(
    authority: Pair,
    name: str,
    names: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    now: datetime,
    days: int,
) -> Pair:
    signer = authority.certificate
    if not signer.not_valid_before_utc <= now < signer.not_valid_after_utc:
        raise ConfigError(
            f"the authority counts from {shown(signer.not_valid_before_utc)} to "
            f"{shown(signer.not_valid_after_utc)} UTC, and now it is {shown(now)}. "
            "Make another with: lipt certs init --force"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = _identifier(authority)
    made = (
        _builder(_name(name), signer.subject, key.public_key())
        .not_valid_before(max(now - _BACKDATED, signer.not_valid_before_utc))
        .not_valid_after(min(now + timedelta(days=days), signer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
    )
    return Pair(made.sign(authority.key, SHA256()), key)


def _identifier(authority: Pair) -> x509.AuthorityKeyIdentifier:
    """What points to the authority, as it calls its own key."""
    try:
        named = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named.value)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: CertificatePublicKeyTypes
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .add_extension(identifier, critical=False)
    )


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


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(
            f"--host {host!r} is not a host's name or IP address. Give it without a port, a "
            "scheme or brackets. Examples: head.example.org, 10.0.0.5, ::1"
        )
    return x509.DNSName(host)
