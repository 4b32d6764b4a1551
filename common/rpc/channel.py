"""Channel to the coordinator, with the retries that are safe for every plain call.

Every request of the contract may be repeated, so UNAVAILABLE is retried by
gRPC itself for some seconds; longer absences are the caller's decision.
"""

from __future__ import annotations

import json
import logging

import grpc

from lipt.common.access.token_source import TokenSource
from lipt.common.network.address import is_loopback, split_address
from lipt.common.network.renewal import Renewal
from lipt.common.network.tls import TlsContents, TlsFiles
from lipt.common.rpc.renewing import RenewingChannel
from lipt.common.rpc.showing import local_credentials, showing
from lipt.common.rpc.traced import traced
from lipt.v1 import info_pb2, run_pb2, subset_pb2, worker_pb2

logger = logging.getLogger(__name__)

# `AccessService` is left out: a token that is asked for twice is two tokens.
# Streams are left out: whoever reads one resumes it where it broke. With retries a stream was
# seen to hang for good, deaf to its cancellation, after its coordinator was killed.
_RETRIED = tuple(
    {"service": service.full_name, "method": method.name}
    for module in (info_pb2, run_pb2, subset_pb2, worker_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not (method.client_streaming or method.server_streaming)
)

_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": _RETRIED,
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

_OPTIONS = (
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.enable_retries", 1),
    # A peer behind a NAT or a closed laptop lid is noticed within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A coordinator that comes up is found within seconds, however long it was away.
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Loopback and cluster addresses are not meant for a web proxy.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(
    address: str, tls: TlsFiles | None = None, token: TokenSource | None = None
) -> grpc.Channel:
    """A channel to `host:port`; it connects when it is first used, and follows the files of `tls`.

    In a process that traces, its calls are part of the trace that they are made in.

    Args:
        address: of the coordinator.
        tls: how it is checked, and what it is shown; None for a connection in the clear.
        token: what every call shows. Without one, calls in the clear to this machine itself show
            the local token, where there is one.

    Raises:
        ConfigError: `address` is not `host:port`, or a file of TLS does not work.
    """
    return traced(_open_channel(address, tls, token))


def _open_channel(address: str, tls: TlsFiles | None, token: TokenSource | None) -> grpc.Channel:
    host, port = split_address(address)
    if tls is not None:

        def connect(contents: TlsContents) -> grpc.Channel:
            credentials = contents.channel_credentials()
            return showing(token, grpc.secure_channel(address, credentials, options=_OPTIONS))

        return RenewingChannel(Renewal(tls), connect)
    if token is None and is_loopback(host):
        return grpc.secure_channel(address, local_credentials(port), options=_OPTIONS)
    if token is not None and not is_loopback(host):
        logger.warning(
            "the token goes to %s in the clear: whoever can listen in between can use it. Give "
            "--tls-ca where the coordinator has TLS.",
            address,
        )
    return showing(token, grpc.insecure_channel(address, options=_OPTIONS))
