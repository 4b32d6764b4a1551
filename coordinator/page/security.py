"""Security of the page: the headers of every answer, and the checks of `Host` and `Origin`.

Another page in the same browser can send requests here, and another name can be made to point here
(DNS rebinding). The browser states both truly: the host in `Host`, the sender in `Origin`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from lipt.common.errors import PermissionDeniedError
from lipt.common.network.tls import is_loopback

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

HEADERS: tuple[tuple[str, str], ...] = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)
NOT_KEPT = ("Cache-Control", "no-store")
REVALIDATED = ("Cache-Control", "no-cache")

_DEFAULT_PORTS = {"http": 80, "https": 443}


def own_names(listen_host: str, certified: Iterable[str] = (), url: str | None = None) -> set[str]:
    """The host names under which a browser may ask for the page, addresses aside.

    `certified` are the names of the server's certificate; `url` is where browsers reach the page,
    if that is somewhere else.
    """
    names = {"localhost", listen_host, *certified}
    if not is_loopback(listen_host):
        names |= {socket.gethostname(), socket.getfqdn()}
    if url is not None:
        names.add(urlsplit(url).hostname or "")
    return {name.lower() for name in names if name}


def require_own_host(host: str, names: set[str]) -> None:
    """Refuse a request under a name that is none of this coordinator's.

    An address cannot be made to point elsewhere. `host` is the header, with or without a port.

    Raises:
        PermissionDeniedError: says under which names the page is served.
    """
    hostname = _hostname(host)
    if hostname in names or _is_address(hostname):
        return
    raise PermissionDeniedError(
        f"this page is not served as {hostname[:200]!r}. It is as {', '.join(sorted(names))}, or "
        "by its address; behind a proxy, give the coordinator --dashboard-url."
    )


def require_own_origin(origin: str | None, host: str) -> None:
    """Refuse a request whose header `Origin` is not the page at the header `Host`.

    Raises:
        PermissionDeniedError: it comes from elsewhere, or does not say.
    """
    if origin is not None and _place(origin) is not None:
        scheme = urlsplit(origin).scheme
        if _place(origin) == _place(f"{scheme}://{host}"):
            return
    raise PermissionDeniedError(
        f"the request comes from {(origin or 'nowhere')[:200]!r}, and not from the page at "
        f"{host[:200]!r}. Behind a proxy, have it pass the header Host on as it is."
    )


def _place(url: str) -> tuple[str, int] | None:
    """Host and port; None where there is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return parts.hostname, port


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(hostname: str) -> bool:
    try:
        ipaddress.ip_address(hostname)
    except ValueError:
        return False
    return True
