"""Access table: which roles may make which call; nobody may make a call that is not in it.

Health is open to everybody: probes show nothing.
"""

from __future__ import annotations

from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.errors import PermissionDeniedError
from lipt.coordinator.access.caller import Caller

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
