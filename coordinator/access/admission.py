"""Admission: what callers have to show, which follows from where and how a coordinator listens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from lipt.common.network.tls import TlsFiles, is_loopback, split_address


class Admission(StrEnum):
    """Who gets in; a token is taken under all of them."""

    # The local token, which only processes of the coordinator's own user can read.
    OWN_USER = "own user"
    # A client certificate, which gRPC has checked, with a role.
    CERTIFIED = "certified"
    # Nothing else than a token.
    TOKEN = "token"  # noqa: S105 - the name of a way
    ANYBODY = "anybody"


def admission(
    listen: str, tls: TlsFiles | None, *, insecure: bool, require_token: bool
) -> Admission:
    """What callers have to show.

    Args:
        listen: the address, host:port.
        tls: the server's files, or None for connections in the clear.
        insecure: whether it was said that the network keeps strangers out.
        require_token: whether it was said that this is not enough.
    """
    if tls is not None:
        return Admission.CERTIFIED if tls.ca is not None else Admission.TOKEN
    if insecure:
        return Admission.TOKEN if require_token else Admission.ANYBODY
    host, _ = split_address(listen)
    return Admission.OWN_USER if is_loopback(host) else Admission.TOKEN


def describe_exposure(listen: str, tls: TlsFiles | None, admitted: Admission) -> str:
    """Who can reach the address, and who of them gets in."""
    host, _ = split_address(listen)
    reach = "this machine only" if is_loopback(host) else "any machine that reaches it"
    return f"reachable from {reach}, {_security(tls)}: {_who(admitted, tls)}"


def _security(tls: TlsFiles | None) -> str:
    if tls is None:
        return "unencrypted"
    return "TLS" if tls.ca is None else "mTLS"


def _who(admitted: Admission, tls: TlsFiles | None) -> str:
    match admitted:
        case Admission.OWN_USER:
            return "lets in this user's processes, and who shows a token"
        case Admission.CERTIFIED:
            authority = Path(tls.ca).name if tls is not None and tls.ca is not None else "--tls-ca"
            return (
                f"lets in peers certified by {authority}, by the roles in their certificates or "
                "in a token"
            )
        case Admission.TOKEN:
            return "lets in who shows a token"
        case Admission.ANYBODY:
            return "lets anybody in, with every role"
