"""Folder: where `lipt certs` keeps an authority and what it has signed.

    ca.pem, ca.key                    the authority
    coordinator.pem, coordinator.key  the coordinator's certificate and key
    NAME.pem, NAME.key                a peer's

Keys are readable by their user alone, as is a folder that is made here. A file is whole or not
there: processes that use it may read it at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from lipt.common.errors import ConfigError
from lipt.common.network.tls import PemFile, read_certificates, read_key, require_key
from lipt.trainer.cli.certificates.authority import AUTHORITY, Pair
from lipt.trainer.writing.files import replacing

_CERT_MODE, _KEY_MODE, _FOLDER_MODE = 0o644, 0o600, 0o700


class Folder:
    """The files of one authority."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cert(self, name: str) -> Path:
        """The file of a certificate."""
        return self.path / f"{name}.pem"

    def key(self, name: str) -> Path:
        """The file of a certificate's key."""
        return self.path / f"{name}.key"

    def authority(self) -> Pair:
        """Who signs here.

        Raises:
            ConfigError: there is none, or its files do not belong together.
        """
        cert, key = self.cert(AUTHORITY), self.key(AUTHORITY)
        if not cert.is_file() or not key.is_file():
            raise ConfigError(
                f"{self.path} has no authority (ca.pem and ca.key). Make one with: lipt certs init "
                f"--folder {self.path}"
            )
        cert_pem = PemFile.read("the authority's certificate", cert)
        key_pem = PemFile.read("the authority's key", key)
        require_key(key_pem, cert_pem)
        certificate, private = read_certificates(cert_pem)[0], read_key(key_pem)
        if not _signs(certificate) or not isinstance(
            private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        ):
            raise ConfigError(
                f"{cert} is not an authority's certificate: it may not sign others. Put an "
                "authority there, or name a folder that has one."
            )
        return Pair(certificate, private)

    def certificate(self, name: str) -> x509.Certificate | None:
        """A certificate that is there, or None.

        Raises:
            ConfigError: what is there is no certificate.
        """
        path = self.cert(name)
        if not path.is_file():
            return None
        return read_certificates(PemFile.read("the certificate", path))[0]

    def require_free(self, names: Iterable[str], *, force: bool) -> None:
        """Refuse to write where something is, unless `force` says so.

        Raises:
            ConfigError: a file is there; it is named.
        """
        for name in names:
            for path in (self.key(name), self.cert(name)):
                if os.path.lexists(path) and not force:
                    raise ConfigError(
                        f"{path} is there already, and is left as it is. Choose another name or "
                        "folder, or replace it with --force."
                    )

    def write(self, name: str, pair: Pair) -> None:
        """Write a certificate and its key, in place of those that are there."""
        self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        # The key first: a certificate is there only when its key is.
        for path, content, mode in (
            (self.key(name), pair.key_pem(), _KEY_MODE),
            (self.cert(name), pair.cert_pem(), _CERT_MODE),
        ):
            with replacing(path, mode=mode) as temporary:
                temporary.write_bytes(content)


def _signs(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
