"""A network that misbehaves on order: it cuts, flips a bit, or falls silent."""

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Self

_PIECE_BYTES = 65_536


@dataclass(frozen=True)
class Fault:
    """Cuts a connection at a byte of one direction, or flips a bit of that byte."""

    upstream: bool
    offset_bytes: int
    bit: int | None = None


class Proxy:
    """Forwards TCP to `target`; each connection meets the next of `faults`, if any is left."""

    def __init__(self, target: str, faults: list[Fault] | None = None) -> None:
        self.faults = faults or []
        self._target = target
        self._frozen = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())

    def freeze(self) -> None:
        self._frozen.set()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _reset(connection)
        for thread in self._threads:
            thread.join()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, port = self._target.rsplit(":", 1)
                try:
                    server = socket.create_connection((host, int(port)))
                except OSError:
                    _reset(client)
                    continue
                with self._lock:
                    self._open += [client, server]
                    fault = self.faults.pop(0) if self.faults else None
                self._start(self._forward, client, server, True, fault)
                self._start(self._forward, server, client, False, fault)

    def _forward(
        self, source: socket.socket, sink: socket.socket, upstream: bool, fault: Fault | None
    ) -> None:
        at = fault.offset_bytes if fault and fault.upstream == upstream else None
        done = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                if self._frozen.is_set():
                    continue
                inside = at is not None and done <= at < done + len(data)
                if fault and inside:
                    data = _broken(data, fault, at - done)  # type: ignore[operator]
                sink.sendall(data)
                done += len(data)
                if fault and inside and fault.bit is None:
                    break
        _reset(source)
        _reset(sink)


def _broken(data: bytes, fault: Fault, index: int) -> bytes:
    if fault.bit is None:
        return data[:index]
    return data[:index] + bytes([data[index] ^ 1 << fault.bit]) + data[index + 1 :]


def _reset(connection: socket.socket) -> None:
    """Close with RST: whoever waits in another thread notices, and so does the peer."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
