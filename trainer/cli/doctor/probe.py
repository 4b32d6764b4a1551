"""Network probe: what stands at an address, asked with plain sockets.

"Nobody listens", "that name does not resolve", "it speaks TLS" and "its
certificate is another host's" each have their own remedy.
"""

from __future__ import annotations

import socket
import ssl
import time

from lipt.common.network.tls import SOON_DAYS, TlsFiles
from lipt.trainer.cli.doctor.checks import Check

_CONNECT_SECONDS = 5.0
# How every HTTP/2 connection begins: a fixed text, and a frame with no settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


def probe(host: str, port: int, tls: TlsFiles | None) -> list[Check]:
    """Connect, and shake hands where TLS is asked for.

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
