"""Calls and connections whose callers' tokens and certificates end while they are open."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import grpc
import grpc.aio
import pytest
import torch
import trustme

from lipt import Client
from lipt.common.access import Role
from lipt.common.access.tls import TlsFiles, role_unit
from lipt.common.access.tokens import Token, TokenSource
from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.blobs.files import write_durably
from lipt.common.errors import LiptError, UnauthenticatedError, from_rpc_error
from lipt.common.rpc.channel import open_channel
from lipt.coordinator import server
from lipt.coordinator.access.caller import ANYBODY
from lipt.coordinator.access.tokens import OWN_FILE, OWN_USER, Shown
from lipt.coordinator.app import App
from lipt.coordinator.rpc import info, limits
from lipt.coordinator.server import serving
from lipt.v1 import (
    access_pb2,
    access_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from lipt.worker.client import CoordinatorClient
from lipt.worker.settings import WorkerSettings
from tests.coordinator.fakes import make_settings, opened
from tests.tls_files import write_files

DAY = 86_400.0
LARGE = bytes(64 * 2**20)
Ask = Callable[[grpc.aio.Channel, Any], AsyncIterator[Any]]


@pytest.fixture(autouse=True)
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CHECK_SECONDS", 0.02)


@asynccontextmanager
async def served(directory: Path, tls: TlsFiles | None = None) -> AsyncIterator[tuple[App, str]]:
    async with opened(make_settings(directory)) as app, serving(app, tls) as address:
        await app.requests.create("", "mine", run_pb2.CreateRunRequest().config, "")
        app.blobs.put_bytes(LARGE)
        yield app, address


async def watching(channel: grpc.aio.Channel, metadata: Any) -> AsyncIterator[Any]:
    runs: Any = run_pb2_grpc.RunServiceStub(channel)
    call = runs.WatchRun(run_pb2.WatchRunRequest(run_id="mine"), metadata=metadata)
    yield await call.read()
    while await call.read() is not grpc.aio.EOF:
        pass
    yield None


async def reading_slowly(channel: grpc.aio.Channel, metadata: Any) -> AsyncIterator[Any]:
    blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
    request = blob_pb2.ReadBlobRequest(blob=blob_to_proto(BlobName.of(LARGE)))
    call = blobs.ReadBlob(request, metadata=metadata)
    # No further message is read for now: the coordinator waits while it sends.
    yield await call.read()
    while await call.read() is not grpc.aio.EOF:
        pass
    yield None


async def sending_slowly(channel: grpc.aio.Channel, metadata: Any) -> AsyncIterator[Any]:
    blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
    call = blobs.WriteBlob(metadata=metadata)
    first = blob_pb2.WriteBlobRequest(blob=blob_to_proto(BlobName.of(b"two")))
    fill_chunk(first.chunk, 0, b"t")
    await call.write(first)
    yield None
    await call


async def poll(channel: grpc.aio.Channel, metadata: Any = ()) -> Any:
    """A call of a worker that registers, and waits for a learner."""
    workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    secret = secrets.token_hex(16)
    protocol = worker_pb2.ProtocolVersion(major=1)
    request = worker_pb2.RegisterRequest(instance_id=secret, protocol=protocol)
    registered = await workers.Register(request, metadata=metadata)
    asked = worker_pb2.AcquireAssignmentRequest(worker_id=registered.worker_id, wait_seconds=60.0)
    shown = (*metadata, ("lipt-worker-secret", secret))
    return workers.AcquireAssignment(asked, metadata=shown)


async def polling(channel: grpc.aio.Channel, metadata: Any) -> AsyncIterator[Any]:
    call = await poll(channel, metadata)
    yield None
    await call


async def reflecting(channel: grpc.aio.Channel, metadata: Any) -> AsyncIterator[Any]:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call: Any = channel.stream_stream(path)(metadata=metadata)
    await call.write(b"")
    yield await call.read()
    yield await call.read()


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {text}"),)


async def refusal(call: Any) -> LiptError:
    async with asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    return from_rpc_error(caught.value)


OPEN_CALLS = [watching, reading_slowly, sending_slowly, polling, reflecting]


@pytest.mark.parametrize("ask", OPEN_CALLS)
async def test_an_open_call_ends_soon_after_its_token(tmp_path: Path, ask: Ask) -> None:
    async with served(tmp_path) as (app, address), grpc.aio.insecure_channel(address) as channel:
        record, text = await app.tokens.create(Role.ADMIN, name="", days=0.0, creator=ANYBODY)
        call = ask(channel, bearer(text))
        await anext(call)
        await app.tokens.revoke(record.token_id)
        error = await refusal(anext(call))
        assert isinstance(error, UnauthenticatedError)
        assert "was revoked" in str(error)


async def test_an_open_call_ends_with_a_replaced_token_of_the_coordinator(tmp_path: Path) -> None:
    async with served(tmp_path) as (app, address), grpc.aio.insecure_channel(address) as channel:
        call = watching(channel, bearer(app.tokens.own))
        await anext(call)
        write_durably(app.settings.state_dir / OWN_FILE, Token.draw("admin").text.encode())
        assert isinstance(await refusal(anext(call)), UnauthenticatedError)


@pytest.mark.parametrize("ask", [watching, polling])
async def test_a_certificate_ends_on_an_open_connection(tmp_path: Path, ask: Ask) -> None:
    authority = trustme.CA()
    files = write_files(tmp_path / "tls", authority)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    unit = role_unit(Role.ADMIN)
    peer = authority.issue_cert(common_name="box", organization_unit_name=unit, not_after=tomorrow)
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), peer.private_key_pem.bytes(), peer.cert_chain_pems[0].bytes()
    )
    async with (
        served(tmp_path / "state", files) as (app, address),
        grpc.aio.secure_channel(address, credentials) as channel,
    ):
        access: Any = access_pb2_grpc.AccessServiceStub(channel)
        create = access_pb2.CreateTokenRequest(role=access_pb2.ROLE_ADMIN)
        made = await access.CreateToken(create)
        call = ask(channel, ())
        await anext(call)
        app.tokens.wall_clock = lambda: time() + 2 * DAY
        for refused in (anext(call), access.CreateToken(create)):
            error = await refusal(refused)
            assert isinstance(error, UnauthenticatedError)
            assert "the certificate of box has expired on" in str(error)
        # So has what it made.
        with pytest.raises(UnauthenticatedError, match="has expired on"):
            app.tokens.caller(made.secret)


async def test_clients_do_not_notice_that_connections_end_at_an_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "_AGE_SECONDS", 0.2)
    # A busy machine needs a moment for a stream's first message.
    monkeypatch.setattr(info, "_GRACE_SECONDS", 0.5)
    peers: set[str] = set()
    known = server.identify

    def identified(shown: Shown, **given: Any) -> Any:
        peers.add(shown.peer)
        return known(shown, **given)

    monkeypatch.setattr(server, "identify", identified)
    async with served(tmp_path) as (app, address):
        run = app.store.find("mine")

        def use() -> None:
            token = app.tokens.own
            with Client(address, token=token) as client:
                changes = client.watch(run.run_id)
                next(changes)
                while len(peers) < 5:
                    client.info()
                client.save_weights(tmp_path / "theta", run.run_id, "initial")
                client.cancel(run.run_id)
                # The stream has been opened again meanwhile.
                assert [view.ended for view in changes][-1]

        await asyncio.to_thread(use)


async def test_a_worker_s_poll_outlasts_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "_AGE_SECONDS", 0.2)
    monkeypatch.setattr(info, "_GRACE_SECONDS", 60)
    async with served(tmp_path) as (app, address):

        def poll() -> object:
            source = TokenSource(text=app.tokens.own)
            with open_channel(address, token=source) as channel:
                client = CoordinatorClient(channel)
                settings = WorkerSettings(coordinator=address)
                client.register("0123456789abcdef" * 2, settings, torch.device("cpu"))
                return client.acquire(wait_seconds=1.0)

        assert await asyncio.to_thread(poll) is None


async def test_a_handler_s_own_time_out_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError):
        async with limits._ended_by(lambda: OWN_USER):
            raise TimeoutError
