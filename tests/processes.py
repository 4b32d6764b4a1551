"""Processes of tests: forks of an interpreter that has PyTorch and the product loaded.

One *template* process a test session imports PyTorch once, has no threads, and forks on request. A
fork becomes `python -m MODULE ...` or `python FILE ...` as a fresh interpreter would, which
everything else takes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeAlias

# What the products' processes import, less what only some of them do.
_LOADED = (
    "lipt.coordinator.server",
    "lipt.coordinator.cli",
    "lipt.coordinator.compute.context",
    "lipt.coordinator.compute.process",
    "lipt.coordinator.compute.jobs.pretraining",
    "lipt.coordinator.compute.jobs.selection",
    "lipt.cli",
    "lipt.worker.agent",
    "lipt.worker.cli",
    "sklearn.datasets",
)
_FORKSERVER = "from multiprocessing.forkserver import main"


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: int,
    errors: int,
    folder: Path | None = None,
) -> Process:
    if not _is_forkable(arguments):
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=dict(environment),
            cwd=folder,
        )
    request = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": str(folder or Path.cwd()),
    }
    return _template().fork(request, output, errors)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    taken = os.environ if environment is None else environment
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        given = {"output": output.fileno(), "errors": errors.fileno()}
        process = start(arguments, taken, **given, folder=folder)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        return subprocess.CompletedProcess(arguments, status, _text(output), _text(errors))


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _is_forkable(arguments: Sequence[str]) -> bool:
    first = arguments[0]
    return first.endswith(".py") or (first == "-m" and not arguments[1].startswith("pytest"))


class ForkedProcess:
    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._status: int | None = None
        self._lock = threading.Lock()

    @property
    def returncode(self) -> int | None:
        return self._status

    def poll(self) -> int | None:
        return self._receive(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._receive(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _receive(self, timeout: float | None) -> int | None:
        with self._lock:
            if self._status is None and select.select([self._connection], [], [], timeout)[0]:
                answer = self._connection.recv(64)
                # Without an answer the template itself has ended.
                self._status = int(answer) if answer else -signal.SIGKILL
                self._connection.close()
            return self._status


Process: TypeAlias = subprocess.Popen[Any] | ForkedProcess


class _Template:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).resolve().parents[1],
            env=os.environ | alone,
        )
        theirs.close()

    def end(self) -> None:
        self._control.close()
        self._process.wait()

    def fork(self, request: Mapping[str, Any], output: int, errors: int) -> ForkedProcess:
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno(), output, errors])
        ours.sendall(json.dumps(request).encode() + b"\n")
        return ForkedProcess(int(_line(ours)), ours)


@cache
def _template() -> _Template:
    return _Template()


def end_template() -> None:
    if _template.cache_info().currsize:
        _template().end()
        _template.cache_clear()


def _line(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise RuntimeError("the template process of the tests has ended; see its output")
        received += piece
    return received


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request, until tests have ended; returns in each fork, with its request."""
    ended, waker = os.pipe()
    for descriptor in (ended, waker):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(children)
        if control not in ready:
            continue
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not asked:
            raise SystemExit
        connection = socket.socket(fileno=descriptors[0])
        request: dict[str, Any] = json.loads(_line(connection))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(descriptors[1:], start=1):
                os.dup2(descriptor, number)
            os.closerange(3, 1 << 10)
            for abandoned in (control, connection, *children.values()):
                abandoned.detach()
            return request
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        connection.sendall(f"{pid}\n".encode())
        children[pid] = connection


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as connection, suppress(BrokenPipeError):  # nobody waits for it
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any]) -> None:
    """Run what was asked for as the main program of this process."""
    arguments: list[str] = request["arguments"]
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    tempfile.tempdir = None  # of this environment, and not what was found for the template
    own = environment.get("PYTHONPATH", "")
    multiprocessing.util.spawnv_passfds = _spawn
    if arguments[0] == "-m":
        sys.path[:0] = [request["folder"], *filter(None, own.split(os.pathsep))]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(arguments[0]).parent), *filter(None, own.split(os.pathsep))]
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


_spawn_fresh = multiprocessing.util.spawnv_passfds


def _spawn(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Have this process's fork server forked as well, as long as there are no threads."""
    if _FORKSERVER not in arguments[-1] or threading.active_count() > 1:
        return _spawn_fresh(path, arguments, descriptors)
    pid = os.fork()
    if pid == 0:
        kept = {0, 1, 2, *descriptors}
        for descriptor in range(3, 1 << 10):
            if descriptor not in kept:
                with suppress(OSError):
                    os.close(descriptor)
        status = 1
        # A fresh server has no program either: its children import the coordinator's.
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            exec(arguments[-1], {})
            status = 0
        finally:
            os._exit(status)
    return pid


def _ended(request: dict[str, Any]) -> int:
    """The exit status after the program and its exit handlers, as the interpreter has it."""
    status: object = 0
    try:
        _become(request)
    except SystemExit as ended:
        status = ended.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - the interpreter's part
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)  # type: ignore[call-overload]


def main() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    gc.freeze()  # what is loaded is not collected, so that forks share its memory
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    # Taking PyTorch's memory apart takes 2 s, which the system does at once.
    os._exit(_ended(request))


if __name__ == "__main__":
    main()
