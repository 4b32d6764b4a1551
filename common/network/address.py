"""Addresses: host and port, who can reach them, and whether that needs to be asked for."""

from __future__ import annotations

import ipaddress

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair.

    Raises:
        ConfigError: the address has another form, or its port is out of range.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port. Example: 127.0.0.1:50051")
    return host.strip("[]"), int(port)


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
