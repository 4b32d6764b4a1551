"""Every call that a coordinator answers, by the descriptors: one that is new is among them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import lipt.v1


def contract_methods() -> Iterator[Any]:
    """Descriptors of the methods of every service of `lipt.v1`."""
    names = (module.name for module in pkgutil.iter_modules(lipt.v1.__path__))
    for name in names:
        if name.endswith("_pb2"):
            yield from _methods(importlib.import_module(f"lipt.v1.{name}"))


def all_methods() -> Iterator[Any]:
    """Those, and the methods of health and reflection."""
    yield from contract_methods()
    yield from _methods(health_pb2)
    yield from _methods(reflection_pb2)


def path_of(method: Any) -> str:
    """The method's full name, as it goes over the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _methods(module: Any) -> Iterator[Any]:
    for service in module.DESCRIPTOR.services_by_name.values():
        yield from service.methods
