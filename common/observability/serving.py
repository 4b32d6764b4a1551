"""Serving: a WSGI application over HTTP or HTTPS in threads of its own.

A new connection gets the certificate that the files hold then. Its own thread makes the handshake,
so that a silent peer blocks nobody.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from lipt.common.errors import ConfigError
from lipt.common.network.tls import Renewal, TlsFiles

logger = logging.getLogger(__name__)

# A peer that says nothing for so long is not waited for.
_SILENCE_SECONDS = 30.0


@contextmanager
def serving_http(
    host: str, port: int, application: Callable[..., Any], tls: TlsFiles | None
) -> Iterator[int]:
    """Serve until the block ends."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    server = _Server(host, port, family, _contexts(tls))
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def server_context(tls: TlsFiles | None, *, asks_peers: bool) -> ssl.SSLContext | None:
    """One context for a server that takes no other; None where connections are in the clear.

    Each of its connections gets the certificate that the files hold by then.
    """
    contexts = _contexts(tls if asks_peers or tls is None else replace(tls, ca=None))
    if contexts is None:
        return None
    context = contexts()

    def newest(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = contexts()

    context.sni_callback = newest
    return context


def _contexts(tls: TlsFiles | None) -> Callable[[], ssl.SSLContext] | None:
    if tls is None or tls.cert is None:
        return None
    renewal = Renewal(tls)
    contents, context = renewal.current(), _context(tls)

    def current() -> ssl.SSLContext:
        nonlocal contents, context
        if (newest := renewal.current()) is not contents:
            try:
                context = _context(tls)
            except OSError:  # replaced once more; looked at again at the next connection
                logger.debug("TLS files change while they are read", exc_info=True)
            else:
                contents = newest
        return context

    return current


def _context(tls: TlsFiles) -> ssl.SSLContext:
    if tls.cert is None:
        raise ConfigError("HTTPS needs --tls-cert and --tls-key.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    if tls.ca is not None:
        context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        logger.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(
        self,
        host: str,
        port: int,
        family: int,
        contexts: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.address_family = family
        self._contexts = contexts
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, peer = super().get_request()
        if self._contexts is not None:
            connection = self._contexts().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # A stranger's handshake, or a scraper that leaves: a matter of theirs.
        logger.debug("a connection of %s ends early: %s", client_address, sys.exception())
