"""TLS files: certificates by the same three flags on all three sides.

A server with `ca` asks its peers for a certificate of that authority (mTLS); a
client with `ca` alone checks the server, with `cert` and `key` it also proves
who it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc

from lipt.common.errors import ConfigError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; read when a connection is made, so that renewed ones are picked up."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @classmethod
    def from_options(cls, cert: Path | None, key: Path | None, ca: Path | None) -> Self | None:
        """The files of `--tls-cert --tls-key --tls-ca`, or None where none was given.

        Raises:
            ConfigError: a certificate without its key or the reverse, or a file
                that is not there.
        """
        if cert is None and key is None and ca is None:
            return None
        if (cert is None) != (key is None):
            given, missing = ("--tls-cert", "--tls-key") if cert else ("--tls-key", "--tls-cert")
            raise ConfigError(f"{given} was given without {missing}: a certificate needs its key.")
        for flag, path in (("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)):
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag} {path} is not a file. Give the path of a PEM file.")
        return cls(cert=cert, key=key, ca=ca)

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
