"""Checks of `lipt doctor`: what is installed, what answers, and what to do about it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lipt.common.errors import LiptError, UnreachableError
from lipt.common.network.tls import SOON_DAYS, TlsFiles, split_address
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.text import empty_classes
from lipt.trainer.cli.options import Coordinator
from lipt.trainer.views import DatasetView, InfoView, WorkerView

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
    """Checks of a coordinator's answer."""
    checks = [
        protocol_check(info.protocol, protocol),
        Check("coordinator", True, f"computes on {info.device or 'an unnamed device'}"),
        *_version_checks(info, versions),
        dataset_check(info.dataset),
    ]
    if not info.workers:
        detail = "none has joined, so learners wait"
        remedy = "Start one: lipt-worker --coordinator HOST:PORT"
        checks.append(Check("workers", None, detail, remedy))
    return [*checks, *map(worker_check, info.workers)]


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


def worker_check(worker: WorkerView) -> Check:
    """Whether a worker is there and may train."""
    name = f"worker {worker.name}"
    busy = f"at work on {worker.assignment}" if worker.assignment else "idle"
    detail = f"{worker.device}, {busy}, heard {worker.seconds_since_heard:.0f} s ago"
    if worker.seconds_since_heard > _STALE_WORKER_SECONDS:
        return Check(name, None, detail, "See its log; it may be gone.")
    if worker.idle_reason:
        remedy = "Start it with that flag where its machine may run that code, or start another."
        return Check(name, None, f"{detail}; it {worker.idle_reason}", remedy)
    return Check(name, True, detail)


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


def device_check() -> Check:
    """What learners and main training can be computed on here."""
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


_CONNECT_SECONDS = 5.0
# How every HTTP/2 connection begins: a fixed text, and a frame with no settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


def probe(host: str, port: int, tls: TlsFiles | None) -> list[Check]:
    """Connect with plain sockets, and shake hands where TLS is asked for."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
            reached = Check("connection", True, f"{host}:{port} accepts connections")
            if tls is None:
                return [reached, Check("tls", None, "not used: the connection is in the clear")]
            return [reached, _handshake(connection, host, tls)]
    except OSError as error:
        return [Check("connection", False, f"{host}:{port}: {error}", _connection_remedy(error))]


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
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(connection, server_hostname=host) as secure:
            certificate = secure.getpeercert() or {}
            if _closes(secure):
                return _not_let_in(tls)
    except ssl.SSLCertVerificationError as error:
        return Check(
            "tls",
            False,
            f"the coordinator's certificate is not trusted: {error.verify_message}",
            "Give the authority that signed it with --tls-ca, and an address that it names.",
        )
    except OSError as error:
        return Check(
            "tls",
            False,
            f"no TLS connection: {error}",
            "Start the coordinator with --tls-cert and --tls-key, or leave the --tls options out; "
            "check that certificate and key belong together.",
        )
    # A verified certificate says when it ends.
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86_400
    detail = f"the coordinator's certificate is trusted, for another {days:.0f} days"
    soon = days < SOON_DAYS
    return Check("tls", None if soon else True, detail, "Renew it soon." if soon else "")


def _closes(secure: ssl.SSLSocket) -> bool:
    try:
        secure.sendall(_PREFACE)
        return not secure.recv(1)
    except TimeoutError:  # it says nothing, and lets us stay
        return False
    except OSError:
        return True


def _not_let_in(tls: TlsFiles) -> Check:
    why = "asks for a client certificate, and there is none here"
    if tls.cert is not None:
        why = f"does not accept {tls.cert}"
    return Check(
        "tls",
        False,
        f"the coordinator's certificate is trusted, but it {why}",
        "Give --tls-cert and --tls-key, of the authority that its own --tls-ca names.",
    )


_LIBRARIES = ("lipt", "torch", "torchvision", "grpcio", "protobuf", "numpy", "safetensors")
_EXTRAS = {"pyarrow": "parquet", "scikit-learn": "demo"}


def installed_versions() -> dict[str, str]:
    """Versions of the installed libraries, by name."""
    versions = {"python": platform.python_version()}
    for library in (*_LIBRARIES, *_EXTRAS):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def local_checks(versions: Mapping[str, str]) -> Iterator[Check]:
    """Checks of this installation and its devices."""
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Check("installed", True, listed)
    for library, extra in _EXTRAS.items():
        if library not in versions:
            detail = f"{library} is not, and only lipt[{extra}] needs it"
            yield Check("installed", None, detail, f"pip install 'lipt[{extra}]'")
    yield device_check()


def remote_checks(coordinator: Coordinator, versions: Mapping[str, str]) -> Iterator[Check]:
    """Checks of a coordinator and the way to it; ends at the first failure."""
    host, port = split_address(coordinator.address)
    if coordinator.wait:
        with suppress(UnreachableError):  # the probe below tells why
            coordinator.connect().close()
        coordinator = dataclasses.replace(coordinator, wait=0.0)
    found = probe(host, port, coordinator.tls())
    yield from found
    if any(check.ok is False for check in found):
        return
    try:
        with coordinator.connect() as client:
            info = client.info()
            caller = client.who_am_i()
    except UnreachableError as error:
        # Its own remedy is to come here.
        remedy = "See the log of what listens there: is it lipt-coordinator, with TLS?"
        yield Check("coordinator", False, error.problem, remedy)
    except LiptError as error:
        yield Check("coordinator", False, str(error).rstrip("."))
    else:
        yield Check("access", True, f"called as {caller.name}: {', '.join(caller.roles)}")
        ours = PROTOCOL_MAJOR, PROTOCOL_MINOR
        yield from coordinator_checks(info, protocol=ours, versions=versions)
