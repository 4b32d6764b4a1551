"""Process: notifications to the service manager, and exit during slow imports."""

from __future__ import annotations

import logging
import os
import signal
import socket
from importlib import import_module

_VARIABLE = "NOTIFY_SOCKET"

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


def run_program(program: str, module: str, *, status_variable: str = "") -> None:
    """Call `main` of a module; until it sets handlers, SIGTERM and SIGINT end the process at once.

    Imports take seconds, and an imported module could catch an exception.
    """
    text = os.environ.get(status_variable, "")
    status = int(text) if text.isdecimal() and int(text) < 256 else 0

    def end(*_: object) -> None:
        os.write(2, f"{program}: stopped while it was starting\n".encode())
        os._exit(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    import_module(module).main()
