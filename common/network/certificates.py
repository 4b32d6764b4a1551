"""Certificates: PEM files looked at before they are used, for gRPC says little of what fails it.

What decodes, and which key belongs to what, is OpenSSL's to say. The dates, which Python's `ssl`
shows of a connection only, are read here from the DER (RFC 5280, section 4.1).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lipt.common.errors import ConfigError

# From here on whoever starts or looks is told.
SOON_DAYS = 14

_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ENCRYPTED = "ENCRYPTED"
# DER tags: the version in front of a certificate's fields, and the older of its two kinds of time.
_VERSION, _SHORT_TIME = 0xA0, 0x17


@dataclass(frozen=True)
class Validity:
    """From when to when a certificate counts."""

    not_before: datetime
    not_after: datetime

    def __str__(self) -> str:
        return f"from {_shown(self.not_before)} to {_shown(self.not_after)} UTC"


def require_certificate(flag: str, path: Path, now: datetime) -> None:
    """Refuse a certificate's file that nobody could be shown.

    Raises:
        ConfigError: it holds no certificate, or the first one is not valid at this time.
    """
    _require_valid(flag, path, _read_validities(flag, path)[0], now)


def require_authority(flag: str, path: Path, now: datetime) -> None:
    """Refuse an authority's file that would let nobody in.

    Raises:
        ConfigError: it holds no certificate, or none that is valid at this time.
    """
    validities = _read_validities(flag, path)
    # The one that counts for longest stands for all: older ones may stay in the file.
    _require_valid(flag, path, max(validities, key=lambda validity: validity.not_after), now)


def require_key(flag: str, path: Path, cert_flag: str, cert: Path) -> None:
    """Refuse a key that cannot be used, or is another certificate's.

    Raises:
        ConfigError: it is encrypted, no key at all, or does not belong to `cert`, which has
            been looked at before.
    """
    if _ENCRYPTED in _read(flag, path):
        raise ConfigError(
            f"{flag} {path} is encrypted, and nobody can type its password. Write it unencrypted, "
            f"readable by this user alone: openssl pkey -in {path} -out PLAIN"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # How strong a key has to be is for the peers to say.
    context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        context.load_cert_chain(cert, path)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{flag} {path} does not belong to {cert_flag} {cert}: that certificate is of "
                "another key. Give the two files that were made together."
            ) from None
        raise ConfigError(
            f"{flag} {path} holds no private key ({_reason(error)}). Give the PEM file of "
            f"the key that {cert_flag} {cert} was made for."
        ) from None


def read_validity(path: Path) -> Validity:
    """When the first certificate of a PEM file counts.

    Raises:
        ConfigError: there is none.
    """
    return _read_validities("the certificate", path)[0]


def _read_validities(flag: str, path: Path) -> list[Validity]:
    found = _PEM.findall(_read(flag, path))
    try:
        # Decodes each of them.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        found, why = [], f" ({_reason(error)})"
    else:
        why = ""
    if not found:
        raise ConfigError(
            f"{flag} {path} holds no certificate{why}. Give a PEM file: one with a part that "
            "begins with -----BEGIN CERTIFICATE-----."
        )
    return [_validity(ssl.PEM_cert_to_DER_cert(text)) for text in found]


def _read(flag: str, path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"{flag} {path} cannot be read: {error.strerror}. Let this process's user read it."
        ) from None


def _require_valid(flag: str, path: Path, validity: Validity, now: datetime) -> None:
    if validity.not_before <= now <= validity.not_after:
        return
    what = "has expired" if now > validity.not_after else "is not valid yet"
    raise ConfigError(
        f"{flag} {path} {what}: it is valid {validity}, and now it is {_shown(now)}. "
        "Renew it, or set this machine's clock."
    )


def _validity(certificate: bytes) -> Validity:
    ((_, body),) = _elements(certificate)
    _, signed = next(_elements(body))
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    # Serial number, algorithm, issuer, validity, ...
    begin, end = (_time(tag, content.decode()) for tag, content in _elements(fields[3]))
    return Validity(begin, end)


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in the DER of a sequence."""
    at = 0
    while at < len(content):
        tag, length = content[at], content[at + 1]
        at += 2
        if length >= 0x80:  # so many bytes hold the length
            size = length - 0x80
            length = int.from_bytes(content[at : at + size])
            at += size
        yield tag, content[at : at + length]
        at += length


def _time(tag: int, text: str) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _SHORT_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC)


def _shown(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's word for it, such as "no start line"."""
    return (error.reason or str(error)).replace("_", " ").lower()
