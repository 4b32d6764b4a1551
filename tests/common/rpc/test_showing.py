from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from lipt.common.access.local_token import METADATA_KEY, published
from lipt.common.access.tokens import Token, TokenSource
from lipt.common.errors import ConfigError
from lipt.common.rpc.channel import open_channel, showing


class Listener(grpc.GenericRpcHandler):
    """Answers every kind of call, and keeps what they show."""

    def __init__(self) -> None:
        self.shown: list[tuple[str | None, str | None]] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        metadata = dict(handler_call_details.invocation_metadata or ())
        self.shown.append((metadata.get("authorization"), metadata.get(METADATA_KEY)))  # type: ignore[arg-type]
        kind = handler_call_details.method.rpartition("/")[2]
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        if kind.endswith("stream"):
            return make(lambda request, context: iter([b"answer"]))
        return make(lambda request, context: b"answer")


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def server(listener: Listener) -> Iterator[tuple[grpc.Server, int]]:
    """One that is bound, and yet to be started, and its port."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((listener,))
    yield server, server.add_insecure_port("127.0.0.1:0")
    server.stop(None).wait()


def call_each_kind(channel: grpc.Channel) -> None:
    assert channel.unary_unary("/x.X/unary_unary")(b"", timeout=30) == b"answer"
    assert channel.unary_unary("/x.X/unary_unary").future(b"", timeout=30).result() == b"answer"
    assert list(channel.unary_stream("/x.X/unary_stream")(b"", timeout=30)) == [b"answer"]
    assert channel.stream_unary("/x.X/stream_unary")(iter([b""]), timeout=30) == b"answer"
    assert list(channel.stream_stream("/x.X/stream_stream")(iter([b""]), timeout=30)) == [b"answer"]


def test_every_kind_of_call_shows_the_token(
    server: tuple[grpc.Server, int], listener: Listener
) -> None:
    text = Token.draw("one").text
    server[0].start()
    with open_channel(f"127.0.0.1:{server[1]}", token=TokenSource(text=text)) as channel:
        call_each_kind(channel)
    assert listener.shown == [(f"Bearer {text}", None)] * 5


def test_every_kind_of_call_to_loopback_shows_the_local_token(
    server: tuple[grpc.Server, int], listener: Listener
) -> None:
    server[0].start()
    with published(server[1], "one"), open_channel(f"localhost:{server[1]}") as channel:
        call_each_kind(channel)
    assert listener.shown == [(None, "one")] * 5


def test_call_that_waited_for_its_coordinator_shows_the_token_that_came_with_it(
    server: tuple[grpc.Server, int], listener: Listener
) -> None:
    with open_channel(f"127.0.0.1:{server[1]}") as channel, ExitStack() as stack:
        # It is on its way before there is a token.
        waiting = channel.unary_unary("/x.X/unary_unary").future(b"", timeout=60)
        stack.enter_context(published(server[1], "one"))
        server[0].start()
        assert waiting.result() == b"answer"
    assert listener.shown == [(None, "one")]


def test_who_has_the_port_of_a_dead_coordinator_is_shown_nothing(
    server: tuple[grpc.Server, int], listener: Listener, tmp_path: Path
) -> None:
    with published(server[1], "one") as paths:
        left_behind = {path: path.read_bytes() for path in paths}
    for path, content in left_behind.items():
        path.touch(mode=0o600)
        path.write_bytes(content)
    server[0].start()
    with open_channel(f"127.0.0.1:{server[1]}") as channel:
        channel.unary_unary("/x.X/unary_unary")(b"", timeout=30)
    assert listener.shown == [(None, None)]
    for path in left_behind:
        path.unlink()


def test_file_that_is_gone_fails_the_call_by_name(
    server: tuple[grpc.Server, int], listener: Listener, tmp_path: Path
) -> None:
    server[0].start()
    channel = grpc.insecure_channel(f"127.0.0.1:{server[1]}")
    with showing(TokenSource(tmp_path / "none"), channel) as shown:
        with pytest.raises(ConfigError, match="none cannot be read"):
            shown.unary_unary("/x.X/unary_unary")(b"", timeout=30)
        with pytest.raises(ConfigError, match="none cannot be read"):
            list(shown.unary_stream("/x.X/unary_stream")(b"", timeout=30))
    assert listener.shown == []


def test_token_that_goes_over_the_network_in_the_clear_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = TokenSource(text=Token.draw("one").text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with open_channel(f"127.0.0.1:{taken.getsockname()[1]}", token=source):
            assert caplog.text == ""
    with open_channel("head-node:1", token=source):
        assert "the token goes to head-node:1 in the clear" in caplog.text
    assert source.text not in caplog.text
