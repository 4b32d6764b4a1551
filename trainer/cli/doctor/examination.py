"""Examination by `lipt doctor`: what is installed here, then what the coordinator answers."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress

from lipt.common.errors import LiptError, NotACoordinatorError, UnreachableError
from lipt.common.network.tls import split_address
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.trainer.cli.arguments.options import Coordinator
from lipt.trainer.cli.doctor.checks import Check, caller_check, coordinator_checks
from lipt.trainer.cli.doctor.device import device_check
from lipt.trainer.cli.doctor.probe import probe, speaks_tls
from lipt.trainer.client.client import Client
from lipt.trainer.views import CallerView

_LIBRARIES = ("lipt", "torch", "torchvision", "grpcio", "protobuf", "numpy", "safetensors")
_EXTRAS = {"pyarrow": "parquet", "scikit-learn": "demo"}


def installed_versions() -> dict[str, str]:
    """Versions by name of what is installed here."""
    versions = {"python": platform.python_version()}
    for library in (*_LIBRARIES, *_EXTRAS):
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def local_checks(versions: Mapping[str, str], *, thorough: bool) -> Iterator[Check]:
    """What is installed here, and what it can compute on; `thorough`: by importing torch."""
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Check("installed", True, listed)
    for library, extra in _EXTRAS.items():
        if library not in versions:
            yield Check(
                "installed",
                None,
                f"{library} is not, and only lipt[{extra}] needs it",
                f"pip install 'lipt[{extra}]'",
            )
    yield device_check(versions, thorough=thorough)


def remote_checks(coordinator: Coordinator, versions: Mapping[str, str]) -> Iterator[Check]:
    """Whether a coordinator answers there, and what it says; ends at the first failure.

    Raises:
        ConfigError: the address is not host:port, or a file of TLS or of a token is not usable.
    """
    host, port = split_address(coordinator.address)
    tls = coordinator.tls()
    if coordinator.wait:
        with suppress(UnreachableError):  # which is looked into
            coordinator.connect().close()
        coordinator = dataclasses.replace(coordinator, wait=0.0)
    found = probe(host, port, tls)
    yield from found
    if any(check.ok is False for check in found):
        return
    try:
        with coordinator.connect() as client:
            info = client.info()
            caller = _caller(client)
    except LiptError as error:
        yield _refusal(error, hidden_tls=tls is None and speaks_tls(host, port))
        return
    ours = PROTOCOL_MAJOR, PROTOCOL_MINOR
    yield caller_check(caller)
    yield from coordinator_checks(info, protocol=ours, versions=versions)


def _caller(client: Client) -> CallerView | None:
    try:
        return client.access.who_am_i()
    except NotACoordinatorError:
        return None


def _refusal(error: LiptError, *, hidden_tls: bool) -> Check:
    if not isinstance(error, UnreachableError):
        return Check("coordinator", False, str(error).rstrip("."))
    # Its remedy is to come here.
    remedy = "See the log of what listens there: is it lipt-coordinator?"
    if hidden_tls:
        remedy = "The server there speaks TLS: give --tls-ca."
    return Check("coordinator", False, error.problem, remedy)
