from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from lipt.common.access.tokens import METADATA_KEY, Token, TokenSource, published
from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles, server_credentials
from lipt.common.rpc.channel import IdleWatchdog, open_channel
from lipt.v1 import run_pb2, run_pb2_grpc
from tests.serving import serving
from tests.tls_files import write_files


class Unavailable(run_pb2_grpc.RunServiceServicer):
    """Refuses everything, and counts."""

    num_unary = num_streams = 0

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self.num_unary += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        raise AssertionError

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self.num_streams += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        yield run_pb2.WatchRunResponse()


async def test_plain_calls_are_repeated_by_grpc_and_streams_by_those_who_read_them() -> None:
    servicer = Unavailable()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented

    def ask(address: str) -> None:
        with open_channel(address) as channel:
            stub = run_pb2_grpc.RunServiceStub(channel)
            with pytest.raises(grpc.RpcError):
                stub.GetRun(run_pb2.GetRunRequest(), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(stub.WatchRun(run_pb2.WatchRunRequest(), timeout=20))

    async with serving((run_pb2_grpc.add_RunServiceServicer_to_server, servicer)) as address:
        await asyncio.to_thread(ask, address)
    assert (servicer.num_unary, servicer.num_streams) == (4, 1)


class Call:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_call_that_gives_nothing_is_ended_and_any_ends_with_the_block() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        assert call.cancelled.wait(60)
    assert watchdog.expired
    call = Call()
    with IdleWatchdog(60.0).over(call):
        pass
    assert call.cancelled.is_set()


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


TOKEN = TokenSource(text=Token.draw("one").text)


def test_every_kind_of_call_shows_the_token_or_on_loopback_the_local_one(
    server: tuple[grpc.Server, int], listener: Listener
) -> None:
    server[0].start()
    with open_channel(f"127.0.0.1:{server[1]}", token=TOKEN) as channel:
        call_each_kind(channel)
    with published(server[1], "one"), open_channel(f"localhost:{server[1]}") as channel:
        call_each_kind(channel)
    assert listener.shown == [(f"Bearer {TOKEN.text}", None)] * 5 + [(None, "one")] * 5


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


def test_file_that_is_gone_fails_the_call_by_name(
    server: tuple[grpc.Server, int], listener: Listener, tmp_path: Path
) -> None:
    server[0].start()
    token = TokenSource(tmp_path / "none")
    with open_channel(f"127.0.0.1:{server[1]}", token=token) as shown:
        with pytest.raises(ConfigError, match="none cannot be read"):
            shown.unary_unary("/x.X/unary_unary")(b"", timeout=30)
        with pytest.raises(ConfigError, match="none cannot be read"):
            list(shown.unary_stream("/x.X/unary_stream")(b"", timeout=30))
    assert listener.shown == []


def test_token_that_goes_over_the_network_in_the_clear_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_channel("127.0.0.1:1", token=TOKEN):
        assert caplog.text == ""
    with open_channel("head-node:1", token=TOKEN):
        assert "the token goes to head-node:1 in the clear" in caplog.text
    assert TOKEN.text not in caplog.text


class Server:
    """Answers with the certificate that it was shown; its streams wait for `go_on`."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.peers: set[str] = set()

    async def unary(self, _: bytes, context: Any) -> bytes:
        return self._shown(context)

    async def stream(self, _: bytes, context: Any) -> AsyncIterator[bytes]:
        yield self._shown(context)
        await self.go_on.wait()
        yield self._shown(context)

    async def upload(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in requests:
            pass
        return self._shown(context)

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield self._shown(context)

    def _shown(self, context: Any) -> bytes:
        self.peers.add(context.peer())
        return bytes(context.auth_context()["x509_pem_cert"][0])


@pytest.fixture
async def certified() -> Server:
    return Server()


@pytest.fixture
async def address(certified: Server, tmp_path: Path, authority: trustme.CA) -> AsyncIterator[str]:
    aio = grpc.aio.server()
    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(certified.unary),
        "stream": grpc.unary_stream_rpc_method_handler(certified.stream),
        "upload": grpc.stream_unary_rpc_method_handler(certified.upload),
        "both": grpc.stream_stream_rpc_method_handler(certified.both),
    }
    aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    credentials = server_credentials(write_files(tmp_path / "server", authority))
    port = aio.add_secure_port("127.0.0.1:0", credentials)
    await aio.start()
    yield f"127.0.0.1:{port}"
    certified.go_on.set()
    await aio.stop(None)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    return write_files(tmp_path / "client", authority)


def name(certificate: bytes) -> str:
    return hashlib.sha256(certificate.strip()).hexdigest()[:8]


@pytest.mark.parametrize("token", [None, TOKEN], ids=["alone", "with a token"])
async def test_calls_after_a_change_show_the_new_certificate_and_those_before_go_on(
    certified: Server, address: str, files: TlsFiles, authority: trustme.CA, token: Any
) -> None:
    loop = asyncio.get_running_loop()

    def talk() -> list[bytes]:
        with open_channel(address, files, token) as channel:
            unary = channel.unary_unary("/s/unary")
            upload = channel.stream_unary("/s/upload")
            seen = [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
            stream = channel.unary_stream("/s/stream")(b"", timeout=30)
            seen.append(next(stream))
            write_files(folder, authority)
            seen += [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
            seen += [upload(iter([b"a"]), timeout=30)]
            seen += channel.stream_stream("/s/both")(iter([b"a"]), timeout=30)
            loop.call_soon_threadsafe(certified.go_on.set)
            return [*seen, *stream, unary(b"", timeout=30)]

    assert files.cert is not None
    folder = files.cert.parent
    old = name(files.cert.read_bytes())
    shown = [name(certificate) for certificate in await asyncio.to_thread(talk)]
    new = name(files.cert.read_bytes())
    assert shown == [old] * 3 + [new] * 4 + [old, new]
    assert len(certified.peers) == 2


async def test_a_connection_is_closed_at_the_second_change(
    address: str, files: TlsFiles, authority: trustme.CA, tmp_path: Path
) -> None:
    def talk() -> None:
        with open_channel(address, files) as channel:
            unary = channel.unary_unary("/s/unary")
            oldest = channel.newest()  # type: ignore[attr-defined]
            for _ in range(2):
                oldest.unary_unary("/s/unary")(b"", timeout=30)  # still open
                write_files(tmp_path / "client", authority)
                unary(b"", timeout=30)
            with pytest.raises(ValueError, match="hannel"):
                oldest.unary_unary("/s/unary")(b"", timeout=30)

    await asyncio.to_thread(talk)
