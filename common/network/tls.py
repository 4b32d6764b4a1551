"""TLS files: certificates by the same three flags on all three sides.

A server with `ca` asks its peers for a certificate of that authority (mTLS); a
client with `ca` alone checks the server, with `cert` and `key` it also proves
who it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import grpc

from lipt.common.errors import ConfigError
from lipt.common.network.certificates import (
    SOON_DAYS,
    read_validity,
    require_authority,
    require_certificate,
    require_key,
)

_CERT, _KEY, _CA = "--tls-cert", "--tls-key", "--tls-ca"
# All that gRPC says of a server that did not like our certificate, or missed it.
_CLOSED = "Socket closed"


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; read when a connection is made, so that renewed ones are picked up."""

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
        now: Callable[[], datetime] = _utc_now,
    ) -> Self | None:
        """The files of `--tls-cert --tls-key --tls-ca`, or None where none was given.

        Raises:
            ConfigError: a certificate without its key or the reverse; a file that is not
                there, is not what it should be, or is out of its time; the message has which.
        """
        if cert is None and key is None and ca is None:
            return None
        if (cert is None) != (key is None):
            given, missing = (_CERT, _KEY) if cert else (_KEY, _CERT)
            raise ConfigError(f"{given} was given without {missing}: a certificate needs its key.")
        for flag, path in ((_CERT, cert), (_KEY, key), (_CA, ca)):
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag} {path} is not a file. Give the path of a PEM file.")
        if cert is not None and key is not None:
            require_certificate(_CERT, cert, now())
            require_key(_KEY, key, _CERT, cert)
        if ca is not None:
            require_authority(_CA, ca, now())
        return cls(cert=cert, key=key, ca=ca)

    def why_closed(self, details: str) -> str:
        """What it may mean that a coordinator closes a client's connection; empty if it did not.

        Args:
            details: gRPC's, of a call that failed.
        """
        if _CLOSED not in details:
            return ""
        if self.cert is None:
            return (
                "A coordinator closes it like this where it asks for a client certificate: give "
                f"{_CERT} and {_KEY}."
            )
        return (
            f"A coordinator closes it like this where {_CERT} {self.cert} is not of the authority "
            f"that its own {_CA} names."
        )

    def expires_soon(self, now: datetime | None = None) -> str:
        """A sentence where this side's own certificate has few days left; else empty."""
        if self.cert is None:
            return ""
        end = read_validity(self.cert).not_after
        days = (end - (now or _utc_now())).days
        if days >= SOON_DAYS:
            return ""
        return (
            f"{_CERT} {self.cert} expires in {days} days, on {end:%Y-%m-%d %H:%M} UTC. Renew it: "
            "nobody connects after that."
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """What a server shows, and whom it lets in.

        Raises:
            ConfigError: there is no certificate to show.
        """
        if self.cert is None or self.key is None:
            raise ConfigError("a server needs --tls-cert and --tls-key; --tls-ca adds mTLS.")
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.cert.read_bytes())],
            root_certificates=_read(self.ca),
            require_client_auth=self.ca is not None,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """How a client checks the server, and what it shows."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.cert),
        )


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
