"""Tokens of a coordinator, and the caller identified by a call's credentials.

A token is valid once it is on disk; a revoked one ends at once, even if the disk fails. Users who
can read the coordinator's own token file (by default its own user) are admins.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from lipt.common.access import EVERY_ROLE, Role
from lipt.common.access.local import is_local
from lipt.common.access.tls import (
    CertificateIdentity,
    TlsFiles,
    is_loopback,
    role_unit,
    role_uri,
    split_address,
    stamp_of,
)
from lipt.common.access.tokens import Token
from lipt.common.blobs.files import write_durably
from lipt.common.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StateError,
    UnauthenticatedError,
    UnknownTokenError,
)
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import TokenRecord

logger = logging.getLogger(__name__)

OWN_FILE = "admin.token"
_OWN_ID = "admin"
_DAY_SECONDS = 86_400.0
_MAX_DAYS = 36_500.0
_RETRY_SECONDS = 10.0
# Prefix of the key of a caller with a token.
_TOKEN_KEY = "token"  # noqa: S105 - the name of a way

HOW_TO_GET_ONE = (
    "Ask the coordinator's operator for one (lipt token create --role worker or trainer), and "
    "give it with --token-file or LIPT_TOKEN."
)

OWN_USER = Caller(key="own user", name="the coordinator's own user", roles=frozenset({Role.ADMIN}))


@dataclass(eq=False)
class Tokens:
    """The tokens of a state directory, and their holders."""

    database: Database
    # The state directory's own token, which may be replaced.
    find_own: Callable[[], Token]
    _: KW_ONLY
    # Never set back: what has expired stays expired (`forward_clock`).
    wall_clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._unsaved: set[asyncio.Task[None]] = set()
        self._records: dict[str, TokenRecord] = {}

    async def load(self) -> None:
        records = await self.database.load(TokenRecord)
        oldest_first = sorted(records, key=lambda record: (record.created_at, record.token_id))
        self._records = {record.token_id: record for record in oldest_first}

    @property
    def own(self) -> str:
        return self.find_own().text

    def listed(self) -> tuple[TokenRecord, ...]:
        return tuple(self._records.values())

    async def create(
        self,
        role: Role,
        *,
        name: str,
        days: float,
        creator: Caller,
        scores: bool = False,
        source: str = "",
    ) -> tuple[TokenRecord, str]:
        """Create a token for some days (0: until revoked); its text is never stored.

        It ends with its creator's credential at the latest, so that none can prolong itself.
        """
        if (scores or source) and role is not Role.WORKER:
            raise InvalidRequestError(
                f"a token of the role {role} has no workers that score (--scores) or hold data "
                "(--source). Give the permission with the role worker; an admin's workers have it."
            )
        if not 0.0 <= days <= _MAX_DAYS:  # also refuses NaN
            raise InvalidRequestError(
                f"a token cannot hold for {days:g} days. Give 0 < days <= {_MAX_DAYS:g}, or none "
                "for one that holds until it is revoked."
            )
        while (token_id := secrets.token_hex(4)) in self._records:
            pass
        token, now, last = Token.draw(token_id), self.wall_clock(), creator.expires_at
        expires_at = now + days * _DAY_SECONDS if days else last
        if last is not None and expires_at is not None and expires_at > last:
            raise InvalidRequestError(
                f"a token of {days:g} days would outlast {creator.name}, which ends on "
                f"{_day(last)}. Give at most {(last - now) / _DAY_SECONDS:.2f} days, or none for "
                "one that ends then."
            )
        record = TokenRecord(
            token_id=token.token_id,
            name=name or token.token_id,
            role=role,
            sha256=token.sha256,
            created_at=now,
            created_by=creator.name,
            expires_at=expires_at,
            scores=scores,
            source=source,
        )
        await self.database.save(record)
        self._records[record.token_id] = record
        return record, token.text

    async def revoke(self, token_id: str) -> TokenRecord:
        """Revoke a token at once; after a StateError (failed write) it is written again later."""
        record = self._records.get(token_id)
        if record is None:
            raise UnknownTokenError(
                f"there is no token {token_id!r}. lipt token list shows the ids of all."
            )
        if record.revoked_at is None:
            record = record.changed(revoked_at=self.wall_clock())
            self._records[token_id] = record
        try:
            await self.database.save(record)
        except StateError as error:
            task = asyncio.create_task(self._save_later(record))
            self._unsaved.add(task)
            task.add_done_callback(self._unsaved.discard)
            raise StateError(
                f"the token {token_id} is refused from now on, but a restart would bring it back: "
                f"{error} It is written as soon as that is possible."
            ) from error
        return record

    async def _save_later(self, record: TokenRecord) -> None:
        while True:
            await self.sleep(_RETRY_SECONDS)
            with suppress(StateError):
                await self.database.save(record)
                logger.info("the revocation of %s is written", _name(record))
                return

    def stop(self) -> None:
        """Give up revocations that could not be written."""
        for task in tuple(self._unsaved):
            task.cancel()

    def is_own(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.own.encode())

    def caller(self, text: str) -> Caller:
        """The holder of a token; an UnauthenticatedError if it is unknown or expired."""
        token = Token.parse(text)
        if token is not None and self.is_own(token.text):
            return OWN_USER
        record = self._records.get(token.token_id) if token is not None else None
        if token is None or record is None or not hmac.compare_digest(token.sha256, record.sha256):
            raise UnauthenticatedError(
                f"the token that the call shows is none of this coordinator's. {HOW_TO_GET_ONE}"
            )
        if over := self._expiry_reason(record):
            raise UnauthenticatedError(f"{_name(record)} {over}. {HOW_TO_GET_ONE}")
        return Caller(
            key=f"{_TOKEN_KEY}:{record.token_id}",
            name=_name(record),
            roles=frozenset({record.role}),
            expires_at=record.expires_at,
            scores=record.scores,
            source=record.source,
        )

    def holds(self, caller: Caller) -> bool:
        if caller.expires_at is not None and self.wall_clock() >= caller.expires_at:
            return False
        kind, _, token_id = caller.key.partition(":")
        if kind != _TOKEN_KEY:
            return True
        record = self._records.get(token_id)
        return record is not None and not self._expiry_reason(record)

    def _expiry_reason(self, record: TokenRecord) -> str:
        """Why a token is no longer valid; empty if it is."""
        if record.revoked_at is not None:
            return f"was revoked on {_day(record.revoked_at)}"
        if record.expires_at is not None and self.wall_clock() >= record.expires_at:
            return f"has expired on {_day(record.expires_at)}"
        return ""


def _name(record: TokenRecord) -> str:
    named = f" ({record.name})" if record.name != record.token_id else ""
    return f"the token {record.token_id}{named}"


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


class OwnToken:
    """The state directory's own token; a file that is replaced replaces it at once."""

    def __init__(self, state_dir: Path) -> None:
        """Read the token, or create it."""
        self._path = state_dir / OWN_FILE
        self._token = self._read() or self._drawn()
        self._seen = stamp_of(self._path)

    def __call__(self) -> Token:
        if (stamp := stamp_of(self._path)) != self._seen:
            self._seen = stamp
            token = self._read()
            if token is not None and token != self._token:
                self._token = token
                logger.warning("%s was replaced: the token that it had is refused", self._path)
        return self._token

    def _drawn(self) -> Token:
        token = Token.draw(_OWN_ID)
        try:
            write_durably(self._path, f"{token.text}\n".encode())
        except OSError as error:
            # A full disk does not prevent serving: the token lasts until the next start.
            logger.warning("%s cannot be written: %s", self._path, error.strerror)
        return token

    def _read(self) -> Token | None:
        with suppress(OSError):
            token = Token.parse(self._path.read_text(encoding="ascii", errors="replace"))
            return token if token is not None and token.token_id == _OWN_ID else None
        return None


class Admission(StrEnum):
    """How callers are admitted; a token is always accepted."""

    # The local socket, which only processes of the coordinator's own user can open.
    OWN_USER = "lets in this user's processes, and who shows a token"
    # A client certificate with a role, verified by gRPC.
    CERTIFIED = "lets in peers that --tls-ca certifies, by the roles in certificates or a token"
    TOKEN = "lets in who shows a token"  # noqa: S105 - words for a way
    ANYBODY = "lets anybody in, with every role"


def admission(
    listen: str, tls: TlsFiles | None, *, insecure: bool, require_token: bool
) -> Admission:
    if tls is not None:
        return Admission.CERTIFIED if tls.ca is not None else Admission.TOKEN
    if insecure:
        return Admission.TOKEN if require_token else Admission.ANYBODY
    host, _ = split_address(listen)
    return Admission.OWN_USER if is_loopback(host) else Admission.TOKEN


def describe_exposure(listen: str, tls: TlsFiles | None, admitted: Admission) -> str:
    """A sentence on the reach of the address, and on admission."""
    host, _ = split_address(listen)
    reach = "this machine only" if is_loopback(host) else "any machine that reaches it"
    security = "unencrypted" if tls is None else "TLS" if tls.ca is None else "mTLS"
    return f"reachable from {reach}, {security}: {admitted}"


@dataclass(frozen=True)
class Shown:
    """A call's credentials, with a certificate verified by gRPC, and its peer as gRPC names it."""

    authorization: str | None
    certificate: CertificateIdentity | None
    peer: str


# Raises UnauthenticatedError, or PermissionDeniedError for a certificate without any role.
Identify = Callable[[Shown], Caller]


def identify(shown: Shown, admitted: Admission, tokens: Tokens) -> Caller:
    """The caller of a call, by token, certificate or admission.

    A wrong token, or a certificate without a role, is refused even if neither is needed, and so is
    every call over the connection of a certificate that has expired.
    """
    if shown.certificate is not None:
        _require_current(shown.certificate, tokens.wall_clock())
    if shown.authorization is not None:
        scheme, _, token = shown.authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError(
                "the call's authorization is not of the form 'Bearer TOKEN'. Send a token, or no "
                "authorization."
            )
        return tokens.caller(token)
    if shown.certificate is not None:
        return _certified(shown.certificate)
    match admitted:
        case Admission.ANYBODY:
            return Caller(key=shown.peer, name=ANYBODY.name, roles=EVERY_ROLE)
        case Admission.OWN_USER:
            if not is_local(shown.peer):
                raise UnauthenticatedError(
                    "this coordinator serves the user that started it, and the call did not use "
                    f"its local socket (if it has just started, call again). {HOW_TO_GET_ONE}"
                )
            return OWN_USER
        case Admission.TOKEN | Admission.CERTIFIED:
            raise UnauthenticatedError(
                f"the call shows no token, and this coordinator asks for one. {HOW_TO_GET_ONE}"
            )


def _require_current(certificate: CertificateIdentity, now: float) -> None:
    """Compare the dates, which gRPC does only when the connection begins."""
    over = ""
    if certificate.expires_at is not None and now >= certificate.expires_at:
        over = f"has expired on {_day(certificate.expires_at)}"
    elif certificate.begins_at is not None and now < certificate.begins_at:
        over = f"is valid from {_day(certificate.begins_at)} on"
    if over:
        raise UnauthenticatedError(
            f"the certificate of {certificate.name} {over}. Renew it, or set the clocks."
        )


def _certified(certificate: CertificateIdentity) -> Caller:
    caller = Caller(
        key=f"certificate:{certificate.sha256}",
        name=f"the certificate of {certificate.name}",
        roles=certificate.roles,
        certificate=certificate.sha256,
        expires_at=certificate.expires_at,
        scores=certificate.scores,
    )
    if not caller.roles:
        raise PermissionDeniedError(
            f"{caller.name} (SHA-256 {certificate.sha256[:16]}) gives no role. Use a certificate "
            f"of lipt certs (unit {_choices(role_unit)} in its subject, or alternative name "
            f"{_choices(role_uri)}), or a token besides."
        )
    return caller


def _choices(written: Callable[[Role], str]) -> str:
    *first, last = map(written, Role)
    return f"{', '.join(first)} or {last}"
