from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.rpc.channel import open_channel
from lipt.worker.showing import showing


class Anything(grpc.GenericRpcHandler):
    """Answers every kind of call with the secrets that it showed."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        shown = [
            value for key, value in handler_call_details.invocation_metadata if key == WORKER_SECRET
        ]
        answer = repr(shown).encode()
        return {
            "/unary": grpc.unary_unary_rpc_method_handler(lambda *_: answer),
            "/stream": grpc.unary_stream_rpc_method_handler(lambda *_: iter([answer])),
            "/upload": grpc.stream_unary_rpc_method_handler(lambda *_: answer),
        }[handler_call_details.method]


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    server.stop(None).wait()


def test_each_kind_of_call_shows_the_secret_as_it_is_then(channel: grpc.Channel) -> None:
    secrets = [""]
    shown = showing(channel, lambda: secrets[-1])

    def calls() -> set[bytes]:
        upload = shown.stream_unary("/upload")
        return {
            shown.unary_unary("/unary")(b""),
            shown.unary_unary("/unary").future(b"").result(),
            *shown.unary_stream("/stream")(b""),
            upload(iter([b""])),
            upload.future(iter([b""])).result(),
        }

    assert calls() == {b"[]"}
    secrets.append("5" * 32)
    assert calls() == {b"['%s']" % (b"5" * 32)}
