"""Certificates: PEM files looked at before they are used, for gRPC says little of what fails it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from lipt.common.errors import ConfigError

# From here on whoever starts or looks is told.
SOON_DAYS = 14


@dataclass(frozen=True)
class PemFile:
    """A PEM file as it was read, and what gave its path.

    flag: the option, for errors.
    path: where it was.
    content: what it held.
    """

    flag: str
    path: Path
    content: bytes

    @classmethod
    def read(cls, flag: str, path: Path) -> PemFile:
        """The file of an option.

        Raises:
            ConfigError: it is no file, or cannot be read.
        """
        if not path.is_file():
            raise ConfigError(f"{flag} {path} is not a file. Give the path of a PEM file.")
        try:
            return cls(flag, path, path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{flag} {path} cannot be read: {error.strerror}. Let this process's user read it."
            ) from None

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"


def require_certificate(pem: PemFile, now: datetime) -> None:
    """Refuse a certificate's file that nobody could be shown.

    Raises:
        ConfigError: it holds no certificate, or the first one is not valid at this time.
    """
    _require_valid(pem, read_certificates(pem)[0], now)


def require_authority(pem: PemFile, now: datetime) -> None:
    """Refuse an authority's file that would let nobody in.

    Raises:
        ConfigError: it holds no certificate, or none that is valid at this time.
    """
    certificates = read_certificates(pem)
    # The one that counts for longest stands for all: older ones may stay in the file.
    _require_valid(pem, max(certificates, key=lambda each: each.not_valid_after_utc), now)


def require_key(key: PemFile, cert: PemFile) -> None:
    """Refuse a key that cannot be used, or is another certificate's.

    Raises:
        ConfigError: it is encrypted, no key at all, of a kind that gRPC does not take, or does
            not belong to `cert`.
    """
    private = read_key(key)
    if isinstance(private, Ed25519PrivateKey | Ed448PrivateKey):
        # Its library, BoringSSL, has none of these in a handshake, and closes without a word.
        raise ConfigError(
            f"{key} is an Edwards curve's, which gRPC does not take. Make the pair again with an "
            "EC key on P-256, or an RSA key."
        )
    if private.public_key() != read_certificates(cert)[0].public_key():
        raise ConfigError(
            f"{key} does not belong to {cert}: that certificate is of "
            "another key. Give the two files that were made together."
        )


def read_certificates(pem: PemFile) -> list[x509.Certificate]:
    """All of a file, in their order; at least one.

    Raises:
        ConfigError: there is none, or one is damaged.
    """
    try:
        return x509.load_pem_x509_certificates(pem.content)
    except ValueError as error:
        raise ConfigError(
            f"{pem} holds no certificate ({_reason(error)}). Give a PEM file: one with a part that "
            "begins with -----BEGIN CERTIFICATE-----."
        ) from None


def dns_names(pem: PemFile) -> tuple[str, ...]:
    """The host names that a certificate is for, addresses aside.

    Raises:
        ConfigError: the file holds no certificate.
    """
    try:
        names = read_certificates(pem)[0].extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.value.get_values_for_type(x509.DNSName))


def read_key(pem: PemFile) -> PrivateKeyTypes:
    """The private key of a file.

    Raises:
        ConfigError: there is none, or it is encrypted.
    """
    try:
        return load_pem_private_key(pem.content, password=None)
    except TypeError:  # a password was not given
        raise ConfigError(
            f"{pem} is encrypted, and nobody can type its password. Write it unencrypted, "
            f"readable by this user alone: openssl pkey -in {pem.path} -out PLAIN"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{pem} holds no private key ({_reason(error)}). Give the PEM file of "
            "the key that the certificate was made for."
        ) from None


def _require_valid(pem: PemFile, certificate: x509.Certificate, now: datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begin <= now <= end:
        return
    what = "has expired" if now > end else "is not valid yet"
    raise ConfigError(
        f"{pem} {what}: it is valid from {shown(begin)} to {shown(end)} UTC, and now it is "
        f"{shown(now)}. Renew it, or set this machine's clock."
    )


def shown(time: datetime) -> str:
    """To the minute, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _reason(error: Exception) -> str:
    """What OpenSSL or its successor says, without a pointer to its manual."""
    return str(error).split(". See ", maxsplit=1)[0].rstrip(".")
