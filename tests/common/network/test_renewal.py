"""Files that change under a process: what it uses then, and what its peers see."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from lipt.common.errors import ConfigError
from lipt.common.network.tls import Renewal, TlsFiles, server_credentials
from tests.tls_files import write_files


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    return write_files(tmp_path / "server", authority)


def content(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


def test_contents_are_the_same_object_until_the_files_change(
    files: TlsFiles, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    renewal = Renewal(files)
    before = renewal.current()
    assert renewal.current() is before
    content_before = content(files.cert)
    write_files(tmp_path / "server", authority)
    after = renewal.current()
    assert (before.cert, after.cert) == (content_before, content(files.cert))
    assert renewal.current() is after
    names = f"{files.cert}, {files.key}, {files.ca}"
    assert caplog.messages == [f"new connections use the new content of {names}"]


def test_a_pair_that_is_half_replaced_is_not_used_and_said_once(
    files: TlsFiles, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert files.cert is not None
    assert files.key is not None
    renewal = Renewal(files)
    before = renewal.current()
    fresh = write_files(tmp_path / "fresh", authority)
    files.cert.write_bytes(content(fresh.cert))
    assert [renewal.current() for _ in range(3)] == [before] * 3
    (line,) = caplog.messages
    assert f"--tls-key {files.key} does not belong to --tls-cert {files.cert}" in line
    assert line.endswith("What was read before stays in use.")
    files.key.write_bytes(content(fresh.key))
    assert renewal.current().cert == content(fresh.cert)
    assert renewal.current().key == content(fresh.key)


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_file_that_is_gone_cut_short_or_garbage_is_not_used(
    files: TlsFiles, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = getattr(files, name)
    renewal = Renewal(files)
    before = renewal.current()
    whole = path.read_bytes()
    path.unlink()
    assert renewal.current() is before
    for damaged in (whole[: len(whole) // 2], b"\xff" * len(whole)):
        path.write_bytes(damaged)
        assert renewal.current() is before
    assert [f"--tls-{name} {path}" in line for line in caplog.messages] == [True] * 3
    path.write_bytes(whole)
    assert renewal.current() is before


def test_a_folder_that_is_exchanged_behind_a_link_is_followed(
    tmp_path: Path, authority: trustme.CA
) -> None:
    # As Kubernetes renews a secret in a pod: the files are links into a folder behind a link.
    write_files(tmp_path / "1", authority)
    fresh = write_files(tmp_path / "2", authority)
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "mounted").mkdir()
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / "mounted" / name).symlink_to(Path("..", "data", name))
    mounted = TlsFiles(*(tmp_path / "mounted" / f"{name}.pem" for name in ("cert", "key", "ca")))
    renewal = Renewal(mounted)
    renewal.current()
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(tmp_path / "data")
    assert renewal.current().cert == content(fresh.cert)


def test_files_that_do_not_work_to_begin_with_are_refused(files: TlsFiles) -> None:
    with pytest.raises(ConfigError, match="a server needs --tls-cert"):
        server_credentials(TlsFiles(ca=files.ca))
    assert files.key is not None
    files.key.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no private key"):
        server_credentials(files)


@asynccontextmanager
async def serving(files: TlsFiles) -> AsyncIterator[str]:
    """A server that says "mutual" to who has shown a certificate, and else "one-sided"."""

    async def answer(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b"mutual" if "x509_pem_cert" in context.auth_context() else b"one-sided"

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(files))
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def connect(address: str, files: TlsFiles) -> grpc.aio.Channel:
    # Each channel has a connection of its own.
    options = [("grpc.use_local_subchannel_pool", 1)]
    contents = files.read(datetime.now(UTC))
    return grpc.aio.secure_channel(address, contents.channel_credentials(), options)


async def ask(address: str, files: TlsFiles) -> bytes:
    async with connect(address, files) as channel:
        return bytes(await channel.unary_unary("/s/m")(b"", timeout=30))


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_server_answers_with_the_new_certificate_and_old_connections_go_on(
    tmp_path: Path, mutual: bool
) -> None:
    old, new = trustme.CA(), trustme.CA()
    old_peer = write_files(tmp_path / "old", old)
    new_peer = write_files(tmp_path / "new", new)
    files = write_files(tmp_path / "server", old)
    said = b"mutual" if mutual else b"one-sided"
    async with serving(files if mutual else replace(files, ca=None)) as address:
        async with connect(address, old_peer) as connection:
            method = connection.unary_unary("/s/m")
            assert await method(b"", timeout=30) == said
            write_files(tmp_path / "server", new)
            assert await ask(address, new_peer) == said
            assert await method(b"", timeout=30) == said
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, old_peer)
