"""Checks of `lipt doctor`: this installation and the coordinator, with remedies."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lipt.common.access.tls import split_address
from lipt.common.errors import LiptError, UnreachableError
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.text import empty_classes
from lipt.trainer.cli.options import Coordinator
from lipt.trainer.views import DatasetView, InfoView, WorkerView

# One seed gives one soup only where these agree.
_RESULT_LIBRARIES = ("lipt", "torch", "torchvision")
_LIBRARIES = (*_RESULT_LIBRARIES, "grpcio", "protobuf", "numpy", "safetensors")
# Extras by the distribution that they install.
_EXTRAS = {"pyarrow": "parquet", "scikit-learn": "demo"}


@dataclass(frozen=True)
class Check:
    """One fact: fine (True), broken (False), or worth knowing (None), and what to do."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "note"}[self.ok]
        return f"{mark:<7}{self.name}: {self.detail}. {self.remedy}".rstrip()


def installed_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for library in (*_LIBRARIES, *_EXTRAS):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def local_checks(versions: Mapping[str, str]) -> Iterator[Check]:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Check("installed", True, listed)
    for library, extra in _EXTRAS.items():
        if library not in versions:
            detail = f"{library} is not, and only lipt[{extra}] needs it"
            yield Check("installed", None, detail, f"pip install '.[{extra}]'")
    yield _device_check()


def _device_check() -> Check:
    try:
        import torch
        import torchvision  # noqa: F401 - a torch that does not fit it breaks here
    except (ImportError, OSError, RuntimeError) as error:
        detail = f"torch or torchvision cannot be imported: {error}"
        remedy = "Install a pair that fits: pip install --force-reinstall torch torchvision"
        return Check("device", False, detail, remedy)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("device", True, ", ".join(names))
    return Check("device", True, f"cpu with {torch.get_num_threads()} threads")


def remote_checks(coordinator: Coordinator, versions: Mapping[str, str]) -> Iterator[Check]:
    split_address(coordinator.address)
    try:
        with coordinator.connect() as client:
            info = client.info()
            caller = client.who_am_i()
    except LiptError as error:
        name = "connection" if isinstance(error, UnreachableError) else "coordinator"
        yield Check(name, False, str(error).rstrip("."))
        return
    yield Check("access", True, f"called as {caller.name}: {', '.join(caller.roles)}")
    tls = coordinator.tls()
    if tls is None:
        yield Check("tls", None, "not used: the connection is in the clear")
    elif soon := tls.expires_soon():
        yield Check("tls", None, soon.rstrip("."))
    ours = PROTOCOL_MAJOR, PROTOCOL_MINOR
    yield from coordinator_checks(info, protocol=ours, versions=versions)


def coordinator_checks(
    info: InfoView, *, protocol: tuple[int, int], versions: Mapping[str, str]
) -> Iterator[Check]:
    theirs = info.protocol
    detail = "the coordinator speaks {}.{}, this side {}.{}".format(*theirs, *protocol)
    older = "the coordinator" if theirs < protocol else "this side"
    remedy = "" if theirs[0] == protocol[0] else f"Update {older}: pip install --upgrade lipt"
    yield Check("protocol", not remedy, detail, remedy)
    yield Check("coordinator", True, f"computes on {info.device or 'an unnamed device'}")
    yield from _version_checks(info, versions)
    yield _dataset_check(info.dataset)
    if not info.workers:
        detail = "none has joined, so learners wait"
        yield Check("workers", None, detail, "Start one: lipt-worker --coordinator HOST:PORT")
    yield from map(_worker_check, info.workers)


def _version_checks(info: InfoView, versions: Mapping[str, str]) -> Iterator[Check]:
    peers = {
        "this side": versions,
        "the coordinator": info.versions,
        **{f"worker {worker.name}": worker.versions for worker in info.workers},
    }
    for library in _RESULT_LIBRARIES:
        found = {who: known[library] for who, known in peers.items() if library in known}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{who} {version}" for who, version in found.items())
            remedy = "One seed gives one subset only with equal versions."
            yield Check("versions", None, f"{library} differs: {listed}", remedy)


def _dataset_check(dataset: DatasetView | None) -> Check:
    if dataset is None or not dataset.num_examples:
        remedy = "Start lipt-coordinator with --data."
        return Check("data", False, "the coordinator has none", remedy)
    detail = (
        f"{dataset.source}, {dataset.num_examples} examples of {dataset.targets}, "
        f"{dataset.inputs}, fingerprint {dataset.fingerprint}"
    )
    empty = empty_classes(dataset.class_names, dataset.class_counts)
    if empty and dataset.other_target is None:
        return Check("data", None, f"{detail}; {empty}", "Models get an output for each of these.")
    return Check("data", True, detail)


def _worker_check(worker: WorkerView) -> Check:
    name = f"worker {worker.name}"
    busy = f"at work on {worker.assignment}" if worker.assignment else "idle"
    detail = f"{worker.device}, {busy}, heard {worker.seconds_since_last_call:.0f} s ago"
    if worker.certificate_expires_at is not None:
        detail += f", certificate until {worker.certificate_expires_at:%Y-%m-%d}"
    if worker.seconds_since_last_call > 60:  # workers call every few seconds
        return Check(name, None, detail, "See its log; it may be gone.")
    if worker.idle_reason:
        remedy = "Start it with that flag where its machine may run that code, or start another."
        return Check(name, None, f"{detail}; it {worker.idle_reason}", remedy)
    return Check(name, True, detail)
