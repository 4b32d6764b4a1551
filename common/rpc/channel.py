"""Channel to the coordinator, with the retries that are safe for every plain call.

Every request of the contract may be repeated, so UNAVAILABLE is retried by
gRPC itself for some seconds; longer absences are the caller's decision.
"""

from __future__ import annotations

import json

import grpc

from lipt.common.network.address import split_address
from lipt.common.network.renewal import Renewal
from lipt.common.network.tls import TlsContents, TlsFiles
from lipt.common.rpc.renewing import RenewingChannel
from lipt.v1 import info_pb2, run_pb2, subset_pb2, worker_pb2

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


def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.Channel:
    """A channel to `host:port`; it connects when it is first used, and follows the files of `tls`.

    Raises:
        ConfigError: `address` is not `host:port`, or a file of TLS does not work.
    """
    split_address(address)
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)

    def connect(contents: TlsContents) -> grpc.Channel:
        return grpc.secure_channel(address, contents.channel_credentials(), options=_OPTIONS)

    return RenewingChannel(Renewal(tls), connect)
