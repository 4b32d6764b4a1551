"""Renewal: TLS files that are read again when they change, and used from then on where they work.

A process runs for longer than its certificate counts. Who renews the files replaces them while
they are in use, one after the other: what is half written, or a pair that does not fit together,
leaves in use what was there before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import grpc

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsContents, TlsFiles, utc_now

logger = logging.getLogger(__name__)

# When a file was written, its size and its number: no replacement leaves all three as they were.
_Stamp = tuple[int, int, int]


class Renewal:
    """The newest contents of TLS files that work; may be asked in any thread.

    Raises:
        ConfigError: the files do not work to begin with.
    """

    def __init__(self, files: TlsFiles, *, now: Callable[[], datetime] = utc_now) -> None:
        self._files, self._now = files, now
        self._lock = threading.Lock()
        # Before the contents: of a change in between, the next who asks hears.
        self._used = self._refused = self._stamps()
        self._contents = files.read(now())

    def current(self) -> TlsContents:
        """The contents to use from now on; the very same object until they change."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._used:
                self._renew(stamps)
            return self._contents

    def _renew(self, stamps: list[_Stamp | None]) -> None:
        try:
            contents = self._files.read(self._now())
        except ConfigError as error:
            # Read again every time, for it may only have to come into its time; said once.
            if stamps != self._refused:
                logger.warning("%s What was read before stays in use.", error)
            self._refused = stamps
            return
        self._used = stamps
        if contents != self._contents:
            self._contents = contents
            names = ", ".join(map(str, _paths(self._files)))
            logger.info("new connections use the new content of %s", names)

    def _stamps(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in _paths(self._files)]


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What a server shows, and whom it lets in, at each connection as the files are then.

    Raises:
        ConfigError: there is no certificate to show, or the files do not work.
    """
    renewal = Renewal(files)
    shown = renewal.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        contents = renewal.current()
        if contents is shown:
            return None
        shown = contents
        return contents.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        shown.server_configuration(),
        changed,  # type: ignore[arg-type]  # the stubs know of no None, which gRPC documents
        require_client_authentication=files.ca is not None,
    )


def _paths(files: TlsFiles) -> list[Path]:
    return [path for path in (files.cert, files.key, files.ca) if path is not None]


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
