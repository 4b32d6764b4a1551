"""Callers: the party or worker behind a call, and the access table: which roles may make it.

Nobody may make a call that is not in the table. Health is open to everybody: probes show nothing.

Worker ids are public, and epochs can be counted. So a worker's call shows its secret `instance_id`
as metadata. The id is a hash of that, so this needs no registration, and works for a lease that
outlived the coordinator. A worker that registered with a certificate shows the same one besides, or
a renewed one of that name.
"""

from __future__ import annotations

import hashlib
import hmac
from contextvars import ContextVar
from dataclasses import dataclass, field

from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.access.tokens import MIN_SECRET_CHARACTERS
from lipt.common.errors import InvalidRequestError, PermissionDeniedError

_ADMINS = frozenset({Role.ADMIN})
_WORKERS = frozenset({Role.WORKER, Role.ADMIN})
_TRAINERS = frozenset({Role.TRAINER, Role.ADMIN})

_OPEN_SERVICE = "/grpc.health.v1.Health/"

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
    """The party behind a call.

    Its `key`, for turns, quotas and bindings, is a certificate's digest, a token's id or a network
    address. `certificate` is its SHA-256 in hexadecimal, `expires_at` in seconds since 1970.
    """

    key: str
    name: str
    roles: frozenset[Role]
    certificate: str = ""
    expires_at: float | None = None

    @property
    def only_works(self) -> bool:
        """Whether it is a worker and nothing more."""
        return self.roles == {Role.WORKER}


# The caller where nobody has to show anything.
ANYBODY = Caller(key="anybody", name="anybody", roles=EVERY_ROLE)

_current: ContextVar[Caller] = ContextVar("lipt_caller", default=ANYBODY)


def current_caller() -> Caller:
    """The caller of the present call."""
    return _current.get()


def note_caller(caller: Caller) -> None:
    """Make `caller` the one of this task's call."""
    _current.set(caller)


def is_open(method: str) -> bool:
    """Whether everybody may call the method (`/package.Service/Method`)."""
    return method.startswith(_OPEN_SERVICE)


def require_role(caller: Caller, method: str) -> None:
    """Refuse a caller that may not call the method."""
    allowed = ALLOWED_ROLES.get(method, frozenset())
    if caller.roles & allowed:
        return
    called = method.rpartition(".")[2]
    if not allowed:
        raise PermissionDeniedError(
            f"{caller.name} may not call {called}: nobody may, for it is not in the coordinator's "
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
class Evidence:
    """A call's caller, and its worker's secret, or an empty text."""

    caller: Caller = ANYBODY
    secret: str = field(default="", repr=False)

    def proves(self, worker_id: str) -> bool:
        """Whether the secret is that of the worker."""
        return bool(self.secret) and hmac.compare_digest(worker_id_of(self.secret), worker_id)


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Binding:
    """The evidence of a worker's registration, to be shown again; the secret is hashed."""

    caller: Caller = ANYBODY
    secret_digest: str = field(default=_digest(""), repr=False)

    @classmethod
    def of(cls, shown: Evidence) -> Binding:
        """The binding of a worker that registers with this."""
        return cls(shown.caller, _digest(shown.secret))

    def objection(self, shown: Evidence) -> str:
        """Why a call is not this worker's, as what it does; empty where it is."""
        if not hmac.compare_digest(_digest(shown.secret), self.secret_digest):
            return "does not show the secret of the worker that registered under it"
        bound, now = self.caller, shown.caller
        # With a secret a worker may call from anywhere, but a certificate has to be shown again.
        # Another one of the same name is the same party's, renewed.
        renewed = bool(now.certificate) and bound.name == now.name
        if bound.certificate and bound.certificate != now.certificate and not renewed:
            return f"is of {now.name}, and the worker registered as {bound.name}"
        return ""


UNBOUND = Binding()


def worker_id_of(instance_id: str) -> str:
    """The public id of a worker."""
    return f"w-{_digest(instance_id)[:16]}"


def party_of(caller: Caller, worker_id: str) -> str:
    """The certificate or token that answers for a worker, or else its process.

    Workers of one party do not confirm each other.
    """
    if caller.certificate:
        return caller.name
    return caller.key if caller.only_works else worker_id


def require_unguessable(instance_id: str) -> None:
    """Refuse an instance id that is no secret, without showing it."""
    if len(instance_id) < MIN_SECRET_CHARACTERS:
        raise InvalidRequestError(
            f"instance_id has {len(instance_id)} characters. A worker proves itself by it: draw at "
            f"least {MIN_SECRET_CHARACTERS} hexadecimal digits at random per process."
        )
