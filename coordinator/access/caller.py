"""Callers, and the access table: which roles may make which call.

Methods outside the table are refused. Health is open to everybody: probes reveal nothing. Worker
ids are public and epochs can be guessed, so a worker's call carries its secret `instance_id`. Its
id is a hash of 128 bits of the secret, so calls can be verified without a registration. A worker
that registered with a certificate must show it again, or a renewed one of that name.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from contextvars import ContextVar
from dataclasses import dataclass, field

from lipt.common.access import EVERY_ROLE, Role
from lipt.common.access.peers import sender_of
from lipt.common.access.tokens import MIN_SECRET_CHARACTERS
from lipt.common.errors import InvalidRequestError, PermissionDeniedError

_ADMINS = frozenset({Role.ADMIN})
_WORKERS = frozenset({Role.WORKER, Role.ADMIN})
_TRAINERS = frozenset({Role.TRAINER, Role.ADMIN})

_OPEN_SERVICE = "/grpc.health.v1.Health/"
_MOST_READABLE = 40

ALLOWED_ROLES: dict[str, frozenset[Role]] = {
    "/lipt.v1.AccessService/CreateToken": _ADMINS,
    "/lipt.v1.AccessService/ListTokens": _ADMINS,
    "/lipt.v1.AccessService/OpenPage": _TRAINERS,
    "/lipt.v1.AccessService/RevokeToken": _ADMINS,
    "/lipt.v1.AccessService/WhoAmI": EVERY_ROLE,
    "/lipt.v1.BlobService/GetUploadStatus": EVERY_ROLE,
    "/lipt.v1.BlobService/ReadBlob": EVERY_ROLE,
    "/lipt.v1.BlobService/WriteBlob": EVERY_ROLE,
    "/lipt.v1.DiagnosisService/Diagnose": _TRAINERS,
    "/lipt.v1.InfoService/GetInfo": EVERY_ROLE,
    "/lipt.v1.InfoService/WatchService": _TRAINERS,
    "/lipt.v1.MixtureService/GetMixture": _TRAINERS,
    "/lipt.v1.RunService/CancelRun": _TRAINERS,
    "/lipt.v1.RunService/CreateRun": _TRAINERS,
    "/lipt.v1.RunService/GetRun": _TRAINERS,
    "/lipt.v1.RunService/GetWeights": _TRAINERS,
    "/lipt.v1.RunService/ListRuns": _TRAINERS,
    "/lipt.v1.RunService/WatchRun": _TRAINERS,
    "/lipt.v1.SubsetService/GetSubset": _TRAINERS,
    "/lipt.v1.SubsetService/ListStrategies": _TRAINERS,
    "/lipt.v1.WorkerService/AcquireAssignment": _WORKERS,
    "/lipt.v1.WorkerService/CommitResult": _WORKERS,
    "/lipt.v1.WorkerService/GetDemand": _WORKERS,
    "/lipt.v1.WorkerService/Heartbeat": _WORKERS,
    "/lipt.v1.WorkerService/Register": _WORKERS,
    "/lipt.v1.WorkerService/ReleaseAssignment": _WORKERS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": EVERY_ROLE,
}


@dataclass(frozen=True)
class Caller:
    """The identity behind a call; `key` identifies it in turns, quotas and bindings.

    `key` is a certificate's digest, a token's id or a network address. `certificate` is a SHA-256
    in hexadecimal, `expires_at` in seconds since 1970. `scores` lets its workers score examples,
    `source` train learners on that source of their own data.
    """

    key: str
    name: str
    roles: frozenset[Role]
    certificate: str = ""
    expires_at: float | None = None
    scores: bool = False
    source: str = ""

    @property
    def only_works(self) -> bool:
        return self.roles == {Role.WORKER}

    @property
    def may_score(self) -> bool:
        """Whether its workers may score ranges: wrong scores change a subset."""
        return self.scores or Role.ADMIN in self.roles

    def may_hold(self, source: str) -> bool:
        """Whether its workers may train on data of this source that they hold."""
        return source == self.source or Role.ADMIN in self.roles

    @property
    def label(self) -> str:
        """Its credential (certificate's name, token or host), readable and safe in file names."""
        identity = self.name if self.certificate else self.key
        if self.name == ANYBODY.name:
            identity = sender_of(identity)
        readable = re.sub("[^A-Za-z0-9]+", "-", identity)[:_MOST_READABLE].strip("-")
        return f"{readable}-{_digest(identity)[:12]}"


# The caller when no credentials are required.
ANYBODY = Caller(key="anybody", name="anybody", roles=EVERY_ROLE)

_current: ContextVar[Caller] = ContextVar("lipt_caller", default=ANYBODY)


def current_caller() -> Caller:
    return _current.get()


def note_caller(caller: Caller) -> None:
    _current.set(caller)


def is_open(method: str) -> bool:
    """Whether everybody may call the method (`/package.Service/Method`)."""
    return method.startswith(_OPEN_SERVICE)


def require_role(caller: Caller, method: str) -> None:
    allowed = ALLOWED_ROLES.get(method, frozenset())
    if caller.roles & allowed:
        return
    called = method.rpartition(".")[2]
    if not allowed:
        raise PermissionDeniedError(
            f"{caller.name} may not call {called}, because it is not in the coordinator's "
            "access table. Update the coordinator."
        )
    raise PermissionDeniedError(
        f"{caller.name} has the role {_listed(caller.roles)}, and {called} takes the role "
        f"{_listed(allowed)}. Show a token of that role (an admin makes one: lipt token create "
        "--role), or a certificate with it."
    )


def _listed(roles: frozenset[Role]) -> str:
    return " or ".join(role for role in Role if role in roles)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CallCredentials:
    """A call's caller, and its worker's secret or an empty text."""

    caller: Caller = ANYBODY
    secret: str = field(default="", repr=False)

    def proves(self, worker_id: str) -> bool:
        return bool(self.secret) and hmac.compare_digest(worker_id_of(self.secret), worker_id)

    def objection(self, worker_id: str, registered: Caller) -> str:
        """Why a call is not of this registered worker, as a verb phrase; empty if it is."""
        if not self.proves(worker_id):
            return "does not show the secret of the worker that registered under it"
        now = self.caller
        # A worker with a secret may call from anywhere, but has to show its certificate again.
        # Another certificate of the same name counts as renewed.
        renewed = bool(now.certificate) and registered.name == now.name
        if registered.certificate and registered.certificate != now.certificate and not renewed:
            return f"is of {now.name}, and the worker registered as {registered.name}"
        return ""


def worker_id_of(instance_id: str) -> str:
    return f"w-{_digest(instance_id)[:32]}"


def require_unguessable(instance_id: str) -> None:
    """Refuse an instance id that is too weak a secret, without showing it."""
    if len(instance_id) < MIN_SECRET_CHARACTERS:
        raise InvalidRequestError(
            f"instance_id has {len(instance_id)} characters. A worker proves itself by it: draw at "
            f"least {MIN_SECRET_CHARACTERS} hexadecimal digits at random per process."
        )
