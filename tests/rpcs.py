"""Every call that a coordinator answers, by the descriptors: one that is new is among them."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import lipt.v1

_WORKER, _TRAINER, _ADMIN = {"worker", "admin"}, {"trainer", "admin"}, {"admin"}
_ANY = _WORKER | _TRAINER
# Roles that each call takes, apart from the coordinator's own table.
EXPECTED = {
    "lipt.v1.AccessService": {
        **dict.fromkeys(("CreateToken", "ListTokens", "RevokeToken"), _ADMIN),
        "OpenPage": _TRAINER,
        "WhoAmI": _ANY,
    },
    "lipt.v1.BlobService": dict.fromkeys(("ReadBlob", "WriteBlob", "GetUploadStatus"), _ANY),
    "lipt.v1.DiagnosisService": {"Diagnose": _TRAINER},
    "lipt.v1.InfoService": {"GetInfo": _ANY, "WatchService": _TRAINER},
    "lipt.v1.MixtureService": {"GetMixture": _TRAINER},
    "lipt.v1.RunService": dict.fromkeys(
        ("CreateRun", "GetRun", "ListRuns", "CancelRun", "WatchRun", "GetWeights"), _TRAINER
    ),
    "lipt.v1.SubsetService": dict.fromkeys(("GetSubset", "ListStrategies"), _TRAINER),
    "lipt.v1.WorkerService": dict.fromkeys(
        (
            *("Register", "AcquireAssignment", "Heartbeat", "CommitResult"),
            *("ReleaseAssignment", "GetDemand"),
        ),
        _WORKER,
    ),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _ANY},
}


def contract_methods() -> Iterator[Any]:
    names = (module.name for module in pkgutil.iter_modules(lipt.v1.__path__))
    for name in names:
        if name.endswith("_pb2"):
            yield from _methods(importlib.import_module(f"lipt.v1.{name}"))


def all_methods() -> Iterator[Any]:
    yield from contract_methods()
    yield from _methods(health_pb2)
    yield from _methods(reflection_pb2)


def path_of(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _methods(module: Any) -> Iterator[Any]:
    for service in module.DESCRIPTOR.services_by_name.values():
        yield from service.methods
