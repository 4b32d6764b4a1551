"""Certificate: a peer's identity and roles, from its client certificate.

An authority assigns roles in either of two fields:

    SAN, URI:     lipt:role:worker    lipt:role:trainer    lipt:role:admin
    subject, OU:  lipt-worker         lipt-trainer         lipt-admin

`lipt:scores` or `lipt-scores` beside it lets workers score examples. gRPC checks the authority and
the dates before a call arrives.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

from lipt.common.access.roles import Role
from lipt.common.network.tls import extension_of
from lipt.common.text import printable

# gRPC's key of a peer's certificate, without its chain.
_PEM = "x509_pem_cert"


@dataclass(frozen=True)
class CertificateIdentity:
    """The identity in a certificate.

    name: the common name, else the first DNS name or URI that is no role, else part of `sha256`.
    sha256: of the certificate (DER), in hexadecimal.
    expires_at: seconds since 1970; None for an unreadable certificate.
    scores: whether its workers may score examples.
    """

    name: str
    sha256: str
    roles: frozenset[Role]
    expires_at: float | None = None
    scores: bool = False


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
        others = extension_of(certificate, x509.SubjectAlternativeName) or ()
    # gRPC accepts forms that cryptography refuses: they give no role.
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return CertificateIdentity(sha256[:16], sha256, frozenset())
    names += [name.value for name in others if isinstance(name, x509.DNSName)]
    uris = [name.value for name in others if isinstance(name, x509.UniformResourceIdentifier)]
    names += [uri for uri in uris if uri not in _BY_URI and uri != SCORES_URI]
    roles = {_BY_UNIT[unit] for unit in units if unit in _BY_UNIT}
    roles |= {_BY_URI[uri] for uri in uris if uri in _BY_URI}
    name = next(filter(None, names), sha256[:16])
    expires_at = certificate.not_valid_after_utc.timestamp()
    scores = SCORES_URI in uris or _SCORES_UNIT in units
    return CertificateIdentity(printable(name), sha256, frozenset(roles), expires_at, scores)


def _subject(certificate: x509.Certificate, part: ObjectIdentifier) -> list[str]:
    found = (attribute.value for attribute in certificate.subject.get_attributes_for_oid(part))
    return [value for value in found if isinstance(value, str)]
