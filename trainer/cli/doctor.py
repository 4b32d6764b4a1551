"""Checks of `lipt doctor`: what is installed, what answers, and what to do about it.

Finding facts and judging them are kept apart: `coordinator_checks` and what it calls are pure.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lipt.common.errors import LiptError, NotACoordinatorError, UnreachableError
from lipt.common.network.tls import SOON_DAYS, TlsFiles, split_address
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.text import empty_classes
from lipt.trainer.cli.options import Coordinator
from lipt.trainer.client.client import Client
from lipt.trainer.views import CallerView, DatasetView, InfoView, WorkerView

# Workers are heard every few seconds; this long without a word means trouble.
_STALE_WORKER_SECONDS = 60.0

# One seed gives one soup only where these agree.
_RESULT_LIBRARIES = ("lipt", "torch", "torchvision")


@dataclass(frozen=True)
class Check:
    """One fact: fine (True), broken (False), or worth knowing (None), and what to do."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def check_line(check: Check) -> str:
    """A check as a line of text."""
    mark = {True: "ok", False: "FAILED", None: "note"}[check.ok]
    remedy = f" {check.remedy}" if check.remedy else ""
    return f"{mark:<7}{check.name}: {check.detail}.{remedy}"


def coordinator_checks(
    info: InfoView, *, protocol: tuple[int, int], versions: Mapping[str, str]
) -> list[Check]:
    """What a coordinator's answer says.

    Args:
        info: the answer.
        protocol: (major, minor) that this side speaks.
        versions: this side's libraries.
    """
    return [
        protocol_check(info.protocol, protocol),
        Check("coordinator", True, f"computes on {info.device or 'an unnamed device'}"),
        *_version_checks(info, versions),
        dataset_check(info.dataset),
        *worker_checks(info.workers),
    ]


def caller_check(caller: CallerView | None) -> Check:
    """Who the coordinator takes this side for; None where it is too old to ask."""
    if caller is None:
        return Check("access", None, "the coordinator asks nobody who they are", "Update it.")
    return Check("access", True, f"called as {caller.name}: {', '.join(caller.roles)}")


def protocol_check(theirs: tuple[int, int], ours: tuple[int, int]) -> Check:
    """Whether both sides understand each other: their majors have to agree."""
    detail = f"the coordinator speaks {theirs[0]}.{theirs[1]}, this side {ours[0]}.{ours[1]}"
    if theirs[0] == ours[0]:
        return Check("protocol", True, detail)
    older = "the coordinator" if theirs < ours else "this side"
    return Check("protocol", False, detail, f"Update {older}: pip install --upgrade lipt")


def dataset_check(dataset: DatasetView | None) -> Check:
    """Whether the coordinator has data, and which."""
    if dataset is None or not dataset.num_examples:
        return Check(
            "data", False, "the coordinator has none", "Start lipt-coordinator with --data."
        )
    detail = (
        f"{dataset.source}, {dataset.num_examples} examples of {dataset.targets}, "
        f"{dataset.inputs}, fingerprint {dataset.fingerprint}"
    )
    empty = empty_classes(dataset.class_names, dataset.class_counts)
    if empty and dataset.other_target is None:
        return Check("data", None, f"{detail}; {empty}", "Models get an output for each of these.")
    return Check("data", True, detail)


def worker_checks(workers: Sequence[WorkerView]) -> list[Check]:
    """Whether there is somebody to train learners."""
    if not workers:
        return [
            Check(
                "workers",
                None,
                "none has joined, so learners wait",
                "Start one: lipt-worker --coordinator HOST:PORT",
            )
        ]
    return [_worker_check(worker) for worker in workers]


def _worker_check(worker: WorkerView) -> Check:
    busy = f"at work on {worker.assignment}" if worker.assignment else "idle"
    detail = f"{worker.device}, {busy}, heard {worker.seconds_since_heard:.0f} s ago"
    if worker.seconds_since_heard > _STALE_WORKER_SECONDS:
        return Check(f"worker {worker.name}", None, detail, "See its log; it may be gone.")
    if worker.idle_reason:
        return Check(
            f"worker {worker.name}",
            None,
            f"{detail}; it {worker.idle_reason}",
            "Start it with that flag where its machine may run that code, or start the other "
            "worker that is wanted.",
        )
    return Check(f"worker {worker.name}", True, detail)


def _version_checks(info: InfoView, versions: Mapping[str, str]) -> list[Check]:
    peers = {
        "this side": versions,
        "the coordinator": info.versions,
        **{f"worker {worker.name}": worker.versions for worker in info.workers},
    }
    checks = []
    for library in _RESULT_LIBRARIES:
        found = {who: known[library] for who, known in peers.items() if library in known}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{who} {version}" for who, version in found.items())
            checks.append(
                Check(
                    "versions",
                    None,
                    f"{library} differs: {listed}",
                    "One seed gives one subset only with equal versions.",
                )
            )
    return checks


_REMEDY = "Install a pair that fits: pip install --force-reinstall torch torchvision"
# What NVIDIA's driver makes, on Linux and under Windows' subsystem for it.
_TRACES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def device_check(versions: Mapping[str, str], *, thorough: bool) -> Check:
    """What learners and main training can be computed on here.

    Importing torch and torchvision takes seconds. Where no CUDA device can be had, and
    torchvision's own requirement says that the two fit, there is nothing that it would tell.

    Args:
        versions: of what is installed, by name.
        thorough: whether torch is imported in any case.
    """
    known = thorough or may_have_cuda(versions.get("torch", ""), sys.platform)
    if known or not fits(versions, _requirements("torchvision")):
        return _imported()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    detail = f"cpu with {cores} cores; torch was not imported, which --thorough does"
    return Check("device", True, detail)


def may_have_cuda(torch: str, platform: str, traces: Sequence[str] = _TRACES) -> bool:
    """Whether there may be a CUDA device that this torch can use.

    Args:
        torch: its version; "2.15.0+cpu" is one that can use none.
        platform: as `sys.platform` has it.
        traces: files that are there where a driver is.
    """
    if torch.endswith("+cpu") or platform == "darwin":
        return False
    return platform != "linux" or any(Path(trace).exists() for trace in traces)


def fits(versions: Mapping[str, str], requirements: Sequence[str]) -> bool:
    """Whether torch is one that torchvision asks for; False where that cannot be told.

    Args:
        versions: of what is installed, by name.
        requirements: torchvision's, as its metadata has them.
    """
    found = re.match(r"\d+(\.\d+)*", versions.get("torch", ""))
    wanted = [
        re.fullmatch(r"torch\s*\(?(==|>=)\s*(\d+(?:\.\d+)*)\)?", text) for text in requirements
    ]
    for match in filter(None, wanted):
        torch, asked = (_numbers(text) for text in (found[0] if found else "0", match[2]))
        return torch == asked if match[1] == "==" else torch >= asked
    return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _requirements(package: str) -> Sequence[str]:
    try:
        return importlib.metadata.requires(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def _imported() -> Check:
    try:
        import torch
        import torchvision  # noqa: F401 - a torch that does not fit it breaks here
    except (ImportError, OSError, RuntimeError) as error:
        detail = f"torch or torchvision cannot be imported: {error}"
        return Check("device", False, detail, _REMEDY)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("device", True, ", ".join(names))
    return Check("device", True, f"cpu with {torch.get_num_threads()} threads")


_CONNECT_SECONDS = 5.0
# How every HTTP/2 connection begins: a fixed text, and a frame with no settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


def probe(host: str, port: int, tls: TlsFiles | None) -> list[Check]:
    """Connect with plain sockets, and shake hands where TLS is asked for.

    "Nobody listens", "that name does not resolve", "it speaks TLS" and "its certificate is
    another host's" each have their own remedy.

    Returns:
        One check for the connection and one for TLS; a failed one is the last.
    """
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
            reached = Check("connection", True, f"{host}:{port} accepts connections")
            if tls is None:
                return [reached, Check("tls", None, "not used: the connection is in the clear")]
            return [reached, _handshake(connection, host, tls)]
    except OSError as error:
        return [Check("connection", False, f"{host}:{port}: {error}", _connection_remedy(error))]


def speaks_tls(host: str, port: int) -> bool:
    """Whether the server answers a TLS handshake; its certificate is not believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:
        return False


def _connection_remedy(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "Check the spelling of the host's name, and the name service."
    if isinstance(error, ConnectionRefusedError):
        return (
            "Nothing listens there: start lipt-coordinator, or give its address with "
            "--coordinator or LIPT_COORDINATOR. It prints its address when it starts."
        )
    return "Check that the host is up and that no firewall drops the port."


def _handshake(connection: socket.socket, host: str, tls: TlsFiles) -> Check:
    try:
        context = _context(tls)
        with context.wrap_socket(connection, server_hostname=host) as secure:
            certificate = secure.getpeercert() or {}
            if _closes(secure):
                return _not_let_in(tls)
    except ssl.SSLCertVerificationError as error:
        return Check(
            "tls",
            False,
            f"the coordinator's certificate is not trusted: {error.verify_message}",
            "Give the authority that signed it with --tls-ca, and an address that the "
            "certificate names.",
        )
    except OSError as error:
        return Check(
            "tls",
            False,
            f"no TLS connection: {error}",
            "Start the coordinator with --tls-cert and --tls-key, or leave the --tls options out; "
            "check that certificate and key belong together.",
        )
    # One that was verified says when it ends.
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86_400
    detail = f"the coordinator's certificate is trusted, for another {days:.0f} days"
    if days < SOON_DAYS:
        return Check("tls", None, detail, "Renew it soon.")
    return Check("tls", True, detail)


def _closes(secure: ssl.SSLSocket) -> bool:
    """Whether the server ends a connection that it was shown no certificate on, or a wrong one.

    A coordinator does so without a word, once the handshake is over on this side.
    """
    try:
        secure.sendall(_PREFACE)
        return not secure.recv(1)
    except TimeoutError:  # it says nothing, and lets us stay
        return False
    except OSError:
        return True


def _not_let_in(tls: TlsFiles) -> Check:
    trusted = "the coordinator's certificate is trusted, but it"
    if tls.cert is None:
        return Check(
            "tls",
            False,
            f"{trusted} asks for a client certificate, and there is none here",
            "Give --tls-cert and --tls-key, of the authority that its own --tls-ca names.",
        )
    return Check(
        "tls",
        False,
        f"{trusted} does not accept {tls.cert}",
        "Give --tls-cert and --tls-key of the authority that the coordinator's own --tls-ca names.",
    )


def _context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


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
        return client.who_am_i()
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
