"""Peers by their network addresses, where nothing better identifies them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import unquote

# Anybody who has one address of an IPv6 network has all of them.
_SHARED_BITS = 64


def network_of(host: str) -> str:
    """The peer behind an address: its IPv4 address, or its IPv6 network (/64)."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _SHARED_BITS), strict=False))


def sender_of(peer: str) -> str:
    """A connection's peer as gRPC names it, without the port: `ipv4:10.0.0.7`, `unix:`.

    gRPC writes `ipv4:10.0.0.7:40123`, `ipv6:%5B2001:db8::1%5D:40123` and `unix:`.
    """
    kind, _, rest = unquote(peer).partition(":")
    return f"{kind}:{network_of(rest.rpartition(':')[0].strip('[]')) or rest}"
