"""A channel whose TLS files change, against a server that knows its peers by certificate."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from lipt.common.access.tokens import Token, TokenSource
from lipt.common.network.tls import TlsFiles, server_credentials
from lipt.common.rpc.channel import open_channel
from tests.tls_files import write_files

TOKEN = TokenSource(text=Token.draw("one").text)


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
async def server() -> Server:
    return Server()


@pytest.fixture
async def address(server: Server, tmp_path: Path, authority: trustme.CA) -> AsyncIterator[str]:
    aio = grpc.aio.server()
    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(server.unary),
        "stream": grpc.unary_stream_rpc_method_handler(server.stream),
        "upload": grpc.stream_unary_rpc_method_handler(server.upload),
        "both": grpc.stream_stream_rpc_method_handler(server.both),
    }
    aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    credentials = server_credentials(write_files(tmp_path / "server", authority))
    port = aio.add_secure_port("127.0.0.1:0", credentials)
    await aio.start()
    yield f"127.0.0.1:{port}"
    server.go_on.set()
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
    server: Server,
    address: str,
    files: TlsFiles,
    authority: trustme.CA,
    tmp_path: Path,
    token: TokenSource | None,
) -> None:
    loop = asyncio.get_running_loop()

    def talk() -> list[bytes]:
        with open_channel(address, files, token) as channel:
            unary = channel.unary_unary("/s/unary")
            upload = channel.stream_unary("/s/upload")
            seen = [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
            stream = channel.unary_stream("/s/stream")(b"", timeout=30)
            seen.append(next(stream))
            write_files(tmp_path / "client", authority)
            seen += [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
            seen += [upload(iter([b"a"]), timeout=30)]
            seen += channel.stream_stream("/s/both")(iter([b"a"]), timeout=30)
            loop.call_soon_threadsafe(server.go_on.set)
            return [*seen, *stream, unary(b"", timeout=30)]

    assert files.cert is not None
    old = name(files.cert.read_bytes())
    shown = [name(certificate) for certificate in await asyncio.to_thread(talk)]
    new = name(files.cert.read_bytes())
    assert shown == [old] * 3 + [new] * 4 + [old, new]
    assert len(server.peers) == 2


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


def _ends(stream: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError):
        list(stream)
    return stream.code()  # type: ignore[no-any-return]


async def test_closing_ends_calls_on_older_connections_too(
    address: str, files: TlsFiles, authority: trustme.CA, tmp_path: Path
) -> None:
    def talk() -> None:
        channel = open_channel(address, files)
        stream = channel.unary_stream("/s/stream")(b"", timeout=30)
        next(stream)
        write_files(tmp_path / "client", authority)
        unary = channel.unary_unary("/s/unary")
        unary(b"", timeout=30)
        channel.close()
        assert _ends(stream) is grpc.StatusCode.CANCELLED
        for call in (unary, unary.future, channel.unary_stream("/s/stream")):
            with pytest.raises(ValueError, match="hannel"):
                call(b"", timeout=30)

    await asyncio.to_thread(talk)
