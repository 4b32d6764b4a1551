"""Identification: the caller of a call, by certificate, token or local secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from lipt.common.access.certificate import CertificateIdentity, role_unit, role_uri
from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.errors import PermissionDeniedError, UnauthenticatedError
from lipt.common.network.tls import TlsFiles, is_loopback, split_address
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.access.tokens import HOW_TO_GET_ONE, OWN_USER, Tokens


class Admission(StrEnum):
    """The ways to get in; a token always counts."""

    # The local token, which only processes of the coordinator's own user can read.
    OWN_USER = "lets in this user's processes, and who shows a token"
    # A client certificate with a role, which gRPC has checked.
    CERTIFIED = "lets in peers that --tls-ca certifies, by the roles in certificates or a token"
    TOKEN = "lets in who shows a token"  # noqa: S105 - words for a way
    ANYBODY = "lets anybody in, with every role"


def admission(
    listen: str, tls: TlsFiles | None, *, insecure: bool, require_token: bool
) -> Admission:
    """The way to get in at this address with these options."""
    if tls is not None:
        return Admission.CERTIFIED if tls.ca is not None else Admission.TOKEN
    if insecure:
        return Admission.TOKEN if require_token else Admission.ANYBODY
    host, _ = split_address(listen)
    return Admission.OWN_USER if is_loopback(host) else Admission.TOKEN


def describe_exposure(listen: str, tls: TlsFiles | None, admitted: Admission) -> str:
    """A sentence on who can reach the address, and who of them gets in."""
    host, _ = split_address(listen)
    reach = "this machine only" if is_loopback(host) else "any machine that reaches it"
    security = "unencrypted" if tls is None else "TLS" if tls.ca is None else "mTLS"
    return f"reachable from {reach}, {security}: {admitted}"


_SCHEME = "bearer"

_NO_TOKEN = f"the call shows no token, and this coordinator asks for one. {HOW_TO_GET_ONE}"
_NOT_OWN_USER = (
    "this coordinator serves the user that started it, and the call does not show its local token. "
    f"{HOW_TO_GET_ONE}"
)


@dataclass(frozen=True)
class Shown:
    """Credentials of a call, the certificate checked by gRPC, and its address with the port."""

    authorization: str | None
    local_token: str | None
    certificate: CertificateIdentity | None
    peer: str


# Raises UnauthenticatedError, or PermissionDeniedError for a certificate without any role.
Identify = Callable[[Shown], Caller]


def identify(shown: Shown, admitted: Admission, tokens: Tokens) -> Caller:
    """The caller of a call: by its token, or its certificate, or as the coordinator listens.

    A wrong token (UnauthenticatedError) is refused also where none is needed, and so is a
    certificate that gives no role (PermissionDeniedError).
    """
    if shown.authorization is not None:
        return tokens.caller(_bearer(shown.authorization))
    if shown.certificate is not None:
        return _certified(shown.certificate)
    match admitted:
        case Admission.ANYBODY:
            return Caller(key=shown.peer, name=ANYBODY.name, roles=EVERY_ROLE)
        case Admission.OWN_USER:
            return _own_user(shown.local_token, tokens)
        case Admission.TOKEN | Admission.CERTIFIED:
            raise UnauthenticatedError(_NO_TOKEN)


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != _SCHEME:
        raise UnauthenticatedError(
            "the call's authorization is not of the form 'Bearer TOKEN'. Send a token, or no "
            "authorization."
        )
    return token


def _certified(certificate: CertificateIdentity) -> Caller:
    caller = Caller(
        key=f"certificate:{certificate.sha256}",
        name=f"the certificate of {certificate.name}",
        roles=certificate.roles,
        certificate=certificate.sha256,
        expires_at=certificate.expires_at,
    )
    if not caller.roles:
        raise PermissionDeniedError(
            f"{caller.name} (SHA-256 {certificate.sha256[:16]}...) gives no role. Put "
            f"{_choices(role_unit)} into its subject as a unit (OU), or {_choices(role_uri)} into "
            "its alternative names as a URI; lipt certs makes such certificates. Or show a token "
            "besides."
        )
    return caller


def _choices(written: Callable[[Role], str]) -> str:
    *others, last = map(written, Role)
    return f"{', '.join(others)} or {last}"


def _own_user(local_token: str | None, tokens: Tokens) -> Caller:
    if local_token is None:
        raise UnauthenticatedError(_NOT_OWN_USER)
    if not tokens.is_own(local_token):
        raise UnauthenticatedError(
            "the local token that the call shows is another coordinator's: what is called here is "
            f"not the one that listens at this port where the caller runs. {HOW_TO_GET_ONE}"
        )
    return OWN_USER
