"""Process: its machine's share, its service manager, and exit during slow imports."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

_VARIABLE = "NOTIFY_SOCKET"
# Results depend on the number of threads, so allow a larger machine's.
_THREADS_PER_CORE = 4
_FEWEST_THREADS = 8
_SHARE_OF_MEMORY = 0.8
_MANY_DESCRIPTORS = 2**20
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")

logger = logging.getLogger(__name__)


def notify_service_manager(**state: str) -> None:
    """Notify the service manager: READY="1" when all is up, STOPPING="1", STATUS as text."""
    path = os.environ.get(_VARIABLE)
    if not path:
        return
    # systemd writes the zero byte of an abstract socket as @.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    message = "\n".join(f"{name}={value}" for name, value in state.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(message.encode(), address)
    except OSError as error:
        logger.warning("no notification %s to the service manager at %s: %s", message, path, error)


# Told to stop, Ctrl-C, and a closed terminal.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def on_stop_signals(stop: Callable[[], object]) -> None:
    """Call `stop` at each of the signals that end a service, except a hangup under `nohup`."""
    for number in STOP_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop())


def run_program(program: str, module: str, *, status_variable: str = "") -> None:
    """Call `main` of a module; until it sets handlers, stop signals end the process at once.

    Imports take seconds, and an imported module could catch an exception.
    """
    text = os.environ.get(status_variable, "")
    status = int(text) if text.isdecimal() and int(text) < 256 else 0

    def end() -> None:
        with suppress(OSError):  # a closed terminal
            os.write(2, f"{program}: stopped while it was starting\n".encode())
        os._exit(status)

    on_stop_signals(end)
    import_module(module).main()


@dataclass(frozen=True)
class Machine:
    """Cores and bytes of main memory for this process."""

    num_cores: int
    memory_bytes: int

    @property
    def max_threads(self) -> int:
        return max(_FEWEST_THREADS, _THREADS_PER_CORE * self.num_cores)

    @property
    def max_memory_bytes(self) -> int:
        return int(_SHARE_OF_MEMORY * self.memory_bytes)


def this_machine() -> Machine:
    """This machine, or its container's share."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        num_cores=len(os.sched_getaffinity(0)) if _HAS_AFFINITY else os.cpu_count() or 1,
        memory_bytes=min([pages * page_bytes, *_container_limits()]),
    )


def _container_limits(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[int]:
    lines = []
    with suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_upwards(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_upwards(root / "memory", path, "memory.limit_in_bytes")


def _limits_upwards(root: Path, path: str, file: str) -> Iterator[int]:
    group = root / path.lstrip("/")
    # A container mounts its own group at the root.
    for folder in (group, *group.parents):
        # "max" is not a number.
        with suppress(OSError, ValueError):
            yield int((folder / file).read_text())
        if folder == root:
            return


def raise_descriptor_limit() -> int:
    """Let this process open as many files and connections as it may; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def wait_passively() -> None:
    """Let OpenMP's threads sleep instead of spin, unless the user chose otherwise."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
