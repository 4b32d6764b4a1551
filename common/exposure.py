"""Who can reach an address, in words, and whether that needs to be asked for."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from lipt.common.errors import ConfigError
from lipt.common.rpc.channel import split_address
from lipt.common.rpc.tls import TlsFiles


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_deliberate_exposure(
    listen: str, tls: TlsFiles | None, *, insecure: bool, flag: str = "--listen"
) -> None:
    """Refuse to listen beyond this machine unencrypted unless it was asked for.

    Raises:
        ConfigError: `listen` is beyond loopback, there is no TLS, and no `--insecure`.
    """
    host, _ = split_address(listen)
    # A client's authority alone encrypts nothing that is served.
    encrypted = tls is not None and tls.cert is not None
    if not is_loopback(host) and not encrypted and not insecure:
        raise ConfigError(
            f"{flag} {listen} is reachable from other machines and there is no TLS. Give "
            "--tls-cert and --tls-key (with --tls-ca only certified peers get in), or --insecure "
            "where the network itself keeps strangers out."
        )


def describe_exposure(listen: str, tls: TlsFiles | None) -> str:
    """Who can reach the address, and how they are checked."""
    host, _ = split_address(listen)
    reach = "this machine only" if is_loopback(host) else "any machine that reaches it"
    if tls is None:
        return f"reachable from {reach}, unencrypted, no authentication"
    if tls.ca is None:
        return f"reachable from {reach}, TLS, no client authentication"
    return f"reachable from {reach}, mTLS: peers certified by {Path(tls.ca).name}"
