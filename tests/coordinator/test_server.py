import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from lipt.common.access.local import LocalTarget
from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.errors import ConfigError
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.app import App
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.rpc.info import LIVENESS, READINESS, answering_probes
from lipt.coordinator.server import notes_on, serve, serving
from lipt.data.inputs.specs import ImageSpec
from lipt.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    info_pb2,
    info_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.coordinator.fakes import DATA, FakeCompute, Hanging, make_settings, opened
from tests.serving import own_user_channel
from tests.tls_files import write_files

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Served:
    def __init__(self, app: App, address: str, channel: grpc.aio.Channel) -> None:
        self.app = app
        self.address = address
        self.workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        self.blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
        self.runs: Any = run_pb2_grpc.RunServiceStub(channel)
        self.info: Any = info_pb2_grpc.InfoServiceStub(channel)
        self.health: Any = health_pb2_grpc.HealthStub(channel)


@asynccontextmanager
async def served(directory: Path, **flags: Any) -> AsyncIterator[Served]:
    async with (
        opened(make_settings(directory, **flags)) as app,
        serving(app) as address,
        own_user_channel(address) as channel,
    ):
        yield Served(app, address, channel)


SECRET = "0123456789abcdef" * 2
SHOWN = (("lipt-worker-secret", SECRET),)


async def register(coordinator: Served, major: int = 1) -> str:
    request = worker_pb2.RegisterRequest(
        instance_id=SECRET, name="one", protocol=worker_pb2.ProtocolVersion(major=major)
    )
    return str((await coordinator.workers.Register(request)).worker_id)


async def test_all_services_of_the_contract_are_served_and_listed(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        with open_channel(coordinator.address) as channel:
            listed = await asyncio.to_thread(
                lambda: ProtoReflectionDescriptorDatabase(channel).get_services()
            )
        info = await coordinator.info.GetInfo(info_pb2.GetInfoRequest())
        runs = await coordinator.runs.ListRuns(run_pb2.ListRunsRequest())
    names = ("Access", "Blob", "Info", "Run", "Subset", "Worker")
    assert {f"lipt.v1.{name}Service" for name in names} < set(listed)
    assert "grpc.health.v1.Health" in listed
    assert (info.dataset.num_examples, info.default_run.model) == (500, "tests.tiny:linear")
    assert list(runs.runs) == []


async def test_a_coordinator_is_found_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "address"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        async with served(tmp_path, address_file=file) as coordinator:
            address = coordinator.address
            assert manager.recv(1000) == f"READY=1\nSTATUS=serving {address}".encode()
            assert file.read_text() == f"{address}\n"
            lock = tmp_path / "state" / "coordinator.lock"
            assert lock.read_text().endswith(f"serving {address}\n")
            assert LocalTarget(address).current().startswith("unix:")
            (tmp_path / "other").mkdir()
            with pytest.raises(ConfigError, match=rf"--listen {address}: .* in use"):
                async with served(tmp_path / "other", listen=address):
                    pytest.fail("it was served")
        assert manager.recv(1000) == b"STOPPING=1"
    assert LocalTarget(address).current() == address
    monkeypatch.delenv("NOTIFY_SOCKET")
    async with served(tmp_path, insecure=True) as coordinator:
        assert LocalTarget(coordinator.address).current() == coordinator.address


async def test_stopping_ends_polls_and_waits_for_running_uploads(tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    blob, half = blob_to_proto(BlobName.of(data)), len(data) // 2
    go_on = asyncio.Event()

    def part(begin: int, end: int) -> blob_pb2.WriteBlobRequest:
        request = blob_pb2.WriteBlobRequest(blob=None if begin else blob)
        fill_chunk(request.chunk, begin, data[begin:end])
        return request

    async def parts() -> AsyncIterator[blob_pb2.WriteBlobRequest]:
        yield part(0, half)
        await go_on.wait()
        yield part(half, len(data))

    async with opened(make_settings(tmp_path)) as app, AsyncExitStack() as stack:
        server = serving(app)
        address = await server.__aenter__()
        channel = await stack.enter_async_context(own_user_channel(address))
        coordinator = Served(app, address, channel)
        health = coordinator.health.Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == SERVING
        polling = coordinator.workers.AcquireAssignment(
            worker_pb2.AcquireAssignmentRequest(
                worker_id=await register(coordinator), wait_seconds=60.0
            ),
            metadata=SHOWN,
        )
        while not app.dispatcher.num_waiting():
            await coordinator.info.GetInfo(info_pb2.GetInfoRequest())
        uploading = coordinator.blobs.WriteBlob(parts())
        while not any(part.size_bytes for part in app.blobs.expiry.parts()):
            await coordinator.info.GetInfo(info_pb2.GetInfoRequest())
        leaving = asyncio.create_task(server.__aexit__(None, None, None))
        # At once: while the upload is still being waited for.
        assert (await health.read()).status == NOT_SERVING
        health.cancel()
        assert not (await polling).HasField("assignment")
        assert not leaving.done()
        go_on.set()
        assert (await uploading).blob == blob
        await leaving
        assert app.blobs.read_bytes(BlobName.of(data)) == data


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"listen": "0.0.0.0:0"}, "0.0.0.0:0 .*--insecure"),
        ({"metrics_listen": "0.0.0.0:0"}, "--metrics-listen 0.0.0.0:0 is reachable from"),
        ({"dashboard_listen": "0.0.0.0:0"}, "--dashboard-listen 0.0.0.0:0 is reachable from"),
        ({"tls_cert": Path("none.pem"), "tls_key": Path("none.pem")}, "none.pem cannot be read"),
    ],
)
async def test_an_open_address_without_its_flag_is_refused_before_the_start(
    tmp_path: Path, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await serve(
            make_settings(tmp_path, **flags),
            asked=asyncio.Event(),
            opening=lambda _: pytest.fail("it was opened"),
        )


async def test_stopping_does_not_wait_for_data_to_open(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, address_file=tmp_path / "address")
    hanging, asked = Hanging(), asyncio.Event()
    compute = FakeCompute({DescribeData: hanging})
    process = asyncio.create_task(
        serve(settings, asked=asked, opening=lambda settings: opened(settings, compute))
    )
    await hanging.begun.wait()
    asked.set()
    await process
    assert hanging.given_up
    assert compute.stopped
    assert not (tmp_path / "address").exists()


async def test_health_probes_need_no_certificate_under_mtls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    tls = write_files(tmp_path / "tls", trustme.CA())
    asked, opening, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settings = make_settings(
        tmp_path,
        tls_cert=tls.cert,
        tls_key=tls.key,
        tls_ca=tls.ca,
        address_file=tmp_path / "address",
        health_listen="127.0.0.1:0",
    )

    async def describe(_: object) -> object:
        opening.set()
        await go_on.wait()
        return DATA

    compute = FakeCompute({DescribeData: describe})
    process = asyncio.create_task(
        serve(settings, asked=asked, opening=lambda settings: opened(settings, compute))
    )
    await opening.wait()
    address = caplog.text.partition("health on ")[2].split()[0]
    async with grpc.aio.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)

        async def heard() -> list[int]:
            asking = [health_pb2.HealthCheckRequest(service=name) for name in (LIVENESS, READINESS)]
            return [(await health.Check(request)).status for request in asking]

        # The data is still being opened.
        assert await heard() == [SERVING, NOT_SERVING]
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(health_pb2.HealthCheckRequest(service="lipt.v1.RunService"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as watched:
            await health.Watch(health_pb2.HealthCheckRequest()).read()
        assert watched.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(ConfigError, match=rf"--health-listen {address}: .* in use"):
            async with answering_probes(address):
                pytest.fail("it was listened on")
        # gRPC would print a line of its own.
        assert capfd.readouterr().err == ""
        go_on.set()
        while await heard() != [SERVING, SERVING]:
            assert not process.done()
        assert (tmp_path / "address").exists()
        asked.set()
        await process
        with pytest.raises(grpc.aio.AioRpcError):
            await heard()


IMAGES = DataDescription("digits", ("cat", "dog"), (3, 4), ImageSpec(1, 8, 8), "f" * 64)


def test_the_start_logs_empty_classes_and_excluded_images() -> None:
    assert list(notes_on(IMAGES)) == []
    ((level, said),) = notes_on(replace(IMAGES, class_counts=(7, 0)))
    assert (level, "dog" in said) == (logging.WARNING, True)
    ((level, said),) = notes_on(replace(IMAGES, quarantined=(2, 5)))
    assert level == logging.WARNING
    assert said == "2 of 9 images cannot be used and are left out: 2, 5."
