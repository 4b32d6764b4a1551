"""TLS files: certificates by the same three flags on all three sides.

A server with `ca` asks its peers for a certificate of that authority (mTLS); a
client with `ca` alone checks the server, with `cert` and `key` it also proves
who it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import grpc

from lipt.common.errors import ConfigError
from lipt.common.network.certificates import (
    SOON_DAYS,
    PemFile,
    read_certificates,
    require_authority,
    require_certificate,
    require_key,
    shown,
)

_CERT, _KEY, _CA = "--tls-cert", "--tls-key", "--tls-ca"
# All that gRPC says of a server that did not like our certificate, or missed it.
_CLOSED = "Socket closed"


def utc_now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class TlsContents:
    """What TLS files held when they were read and looked at: PEM, which no text shows."""

    cert: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    ca: bytes | None = field(repr=False)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """What a server shows, and whom it lets in.

        Raises:
            ConfigError: there is no certificate to show.
        """
        if self.cert is None or self.key is None:
            raise ConfigError("a server needs --tls-cert and --tls-key; --tls-ca adds mTLS.")
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.cert)], root_certificates=self.ca
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """How a client checks the server, and what it shows."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self.key, certificate_chain=self.cert
        )


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; `Renewal` follows their changes."""

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
        now: Callable[[], datetime] = utc_now,
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
        files = cls(cert=cert, key=key, ca=ca)
        files.read(now())
        return files

    def read(self, now: datetime) -> TlsContents:
        """The files as they are now, looked at.

        Raises:
            ConfigError: one is not there, is not what it should be, is out of its time, or
                belongs to another; the message has which.
        """
        cert, key, ca = (
            None if path is None else PemFile.read(flag, path)
            for flag, path in ((_CERT, self.cert), (_KEY, self.key), (_CA, self.ca))
        )
        if cert is not None and key is not None:
            require_certificate(cert, now)
            require_key(key, cert)
        if ca is not None:
            require_authority(ca, now)
        return TlsContents(*(None if pem is None else pem.content for pem in (cert, key, ca)))

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

    def expires_at(self) -> datetime | None:
        """When this side's own certificate expires; None where it has none.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.cert is None:
            return None
        return read_certificates(PemFile.read(_CERT, self.cert))[0].not_valid_after_utc

    def expires_soon(self, now: datetime | None = None) -> str:
        """A sentence where this side's own certificate has few days left; else empty."""
        end = self.expires_at()
        if end is None:
            return ""
        days = (end - (now or utc_now())).days
        if days >= SOON_DAYS:
            return ""
        return (
            f"{_CERT} {self.cert} expires in {days} days, on {shown(end)} UTC. Renew it: "
            "nobody connects after that."
        )
