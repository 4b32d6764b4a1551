"""Service manager: tells systemd, or whoever listens at NOTIFY_SOCKET, how far this process is.

The protocol of sd_notify(3): one datagram of NAME=VALUE lines. What has no such variable in its
environment tells nobody.
"""

from __future__ import annotations

import logging
import os
import socket

_VARIABLE = "NOTIFY_SOCKET"

logger = logging.getLogger(__name__)


def tell_manager(**state: str) -> None:
    """Send what has changed: READY="1" when all is up, STOPPING="1", STATUS in words.

    Args:
        state: values by the names that the protocol gives them.
    """
    path = os.environ.get(_VARIABLE)
    if not path:
        return
    # A socket without a file has a name that begins with a zero byte, and is written with @.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    message = "\n".join(f"{name}={value}" for name, value in state.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(message.encode(), address)
    except OSError as error:
        logger.warning("the service manager at %s was not told %s: %s", path, message, error)
