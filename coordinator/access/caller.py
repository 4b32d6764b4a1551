"""Caller: the party behind a call, and the access table: which roles may make which call.

Nobody may make a call that is not in the table. Health is open to everybody: probes show nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.errors import PermissionDeniedError

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
