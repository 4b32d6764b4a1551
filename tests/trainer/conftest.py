"""A scripted coordinator behind real gRPC, whose answers each test writes; digits, and subsets."""

from __future__ import annotations

import hashlib
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from lipt.common.data import Dataset, open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import (
    access_pb2,
    access_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    config_pb2,
    diagnosis_pb2,
    diagnosis_pb2_grpc,
    info_pb2,
    info_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    subset_pb2,
    subset_pb2_grpc,
    worker_pb2,
)
from tests.relay import Relay
from tests.service import Service, serving
from tests.trainer.made_up import made_up_subset


@dataclass(frozen=True)
class Refusal:
    """A status with the service's reason, as the contract describes it."""

    code: grpc.StatusCode
    reason: str
    message: str
    retry_after_seconds: float = 0.0

    def abort(self, context: grpc.ServicerContext) -> None:
        info, retry = any_pb2.Any(), any_pb2.Any()
        info.Pack(error_details_pb2.ErrorInfo(reason=self.reason, domain="lipt"))
        delay = duration_pb2.Duration(nanos=round(1e9 * self.retry_after_seconds))
        retry.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        status.details.extend([info, retry] if self.retry_after_seconds else [info])
        context.abort_with_status(rpc_status.to_status(status))


@dataclass(frozen=True)
class Cut:
    """The connection breaks."""

    def abort(self, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "going away")


@dataclass(frozen=True)
class Silence:
    """Nothing comes any more, until the fake stops or the call is cancelled."""

    stopping: threading.Event

    def abort(self, context: grpc.ServicerContext) -> None:
        if context.add_callback(self.stopping.set):  # False: the call has ended before
            self.stopping.wait()
        else:
            self.stopping.set()


Step = Any  # a message, or one of the three above


@dataclass
class FakeCoordinator:
    """Answers from scripts, and keeps the requests."""

    address: str = ""
    runs: list[run_pb2.Run] = field(default_factory=list)
    refusal: Refusal | None = None
    # What it says that it has lowered for a run that is created.
    fitted: str = ""
    watch_scripts: list[list[Step]] = field(default_factory=list)
    service_scripts: list[list[Step]] = field(default_factory=list)
    subset_scripts: list[list[Step]] = field(default_factory=list)
    diagnosis_scripts: list[list[Step]] = field(default_factory=list)
    strategies: list[subset_pb2.Strategy] = field(default_factory=list)
    info: info_pb2.GetInfoResponse = field(default_factory=info_pb2.GetInfoResponse)
    blobs: dict[str, bytes] = field(default_factory=dict)
    weights: dict[int, bytes] = field(default_factory=dict)
    tokens: list[access_pb2.Token] = field(default_factory=list)
    page_url: str = "http://127.0.0.1:50080/sign-in?code=the-code"
    requests: list[Any] = field(default_factory=list)
    # The `authorization` of each call about access.
    authorizations: list[str] = field(default_factory=list)
    # Set when a watch is over, whoever ended it.
    watch_ended: threading.Event = field(default_factory=threading.Event)

    def requests_of(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


class _Runs(run_pb2_grpc.RunServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def _note(self, request: Any, context: grpc.ServicerContext) -> None:
        self._fake.requests.append(request)
        if self._fake.refusal:
            self._fake.refusal.abort(context)

    def CreateRun(self, request: Any, context: Any) -> run_pb2.CreateRunResponse:
        self._note(request, context)
        run = run_pb2.Run(
            run_id="r-1",
            name=request.name or "made-up",
            state=run_pb2.RUN_STATE_PENDING,
            revision=1,
            config=request.config,
            fitted=self._fake.fitted,
        )
        return run_pb2.CreateRunResponse(run=run)

    def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self._note(request, context)
        return run_pb2.GetRunResponse(run=self._fake.runs[-1])

    def ListRuns(self, request: Any, context: Any) -> run_pb2.ListRunsResponse:
        self._note(request, context)
        start = int(request.page_token or 0)
        more = start + 1 < len(self._fake.runs)
        return run_pb2.ListRunsResponse(
            runs=self._fake.runs[start : start + 1], next_page_token=str(start + 1) if more else ""
        )

    def CancelRun(self, request: Any, context: Any) -> run_pb2.CancelRunResponse:
        self._note(request, context)
        run = run_pb2.Run()
        run.CopyFrom(self._fake.runs[-1])
        run.state = run_pb2.RUN_STATE_CANCELLED
        return run_pb2.CancelRunResponse(run=run)

    def WatchRun(self, request: Any, context: Any) -> Iterator[run_pb2.WatchRunResponse]:
        self._note(request, context)
        # False: it is over already. Here and not in a step, which may never be reached then.
        if not context.add_callback(self._fake.watch_ended.set):
            self._fake.watch_ended.set()
        for step in self._fake.watch_scripts.pop(0):
            if not isinstance(step, run_pb2.Run):
                step.abort(context)
                return
            self._fake.runs = [step]
            yield run_pb2.WatchRunResponse(run=step)

    def GetWeights(self, request: Any, context: Any) -> run_pb2.GetWeightsResponse:
        self._note(request, context)
        data = self._fake.weights[request.kind]
        self._fake.blobs[hashlib.sha256(data).hexdigest()] = data
        return run_pb2.GetWeightsResponse(weights=blob_ref(data))


class _Subsets(subset_pb2_grpc.SubsetServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def GetSubset(self, request: Any, context: Any) -> Iterator[subset_pb2.GetSubsetResponse]:
        self._fake.requests.append(request)
        for step in self._fake.subset_scripts.pop(0):
            if not isinstance(step, subset_pb2.GetSubsetResponse):
                step.abort(context)
                return
            yield step

    def ListStrategies(self, request: Any, context: Any) -> subset_pb2.ListStrategiesResponse:
        self._fake.requests.append(request)
        return subset_pb2.ListStrategiesResponse(strategies=self._fake.strategies)


class _Diagnoses(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def Diagnose(self, request: Any, context: Any) -> Iterator[diagnosis_pb2.DiagnoseResponse]:
        self._fake.requests.append(request)
        for step in self._fake.diagnosis_scripts.pop(0):
            if not isinstance(step, diagnosis_pb2.DiagnoseResponse):
                step.abort(context)
                return
            yield step


class _Blobs(blob_pb2_grpc.BlobServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def ReadBlob(self, request: Any, context: Any) -> Iterator[blob_pb2.ReadBlobResponse]:
        data = self._fake.blobs[request.blob.sha256]
        for offset in range(request.offset_bytes, len(data), 256 * 1024):
            piece = data[offset : offset + 256 * 1024]
            chunk = blob_pb2.Chunk(offset_bytes=offset, data=piece, crc32=zlib.crc32(piece))
            yield blob_pb2.ReadBlobResponse(chunk=chunk)

    def WriteBlob(self, request_iterator: Any, context: Any) -> blob_pb2.WriteBlobResponse:
        data = b"".join(request.chunk.data for request in request_iterator)
        self._fake.blobs[hashlib.sha256(data).hexdigest()] = data
        return blob_pb2.WriteBlobResponse(blob=blob_ref(data))

    def GetUploadStatus(self, request: Any, context: Any) -> blob_pb2.GetUploadStatusResponse:
        self._fake.requests.append(request)
        known = request.blob.sha256 in self._fake.blobs
        return blob_pb2.GetUploadStatusResponse(
            committed_offset_bytes=request.blob.size_bytes if known else 0, complete=known
        )


class _Info(info_pb2_grpc.InfoServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def GetInfo(self, request: Any, context: Any) -> info_pb2.GetInfoResponse:
        self._fake.requests.append(request)
        return self._fake.info

    def WatchService(
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[info_pb2.WatchServiceResponse]:
        self._fake.requests.append(request)
        for step in self._fake.service_scripts.pop(0):
            if not isinstance(step, info_pb2.WatchServiceResponse):
                step.abort(context)
                return
            yield step


class _Access(access_pb2_grpc.AccessServiceServicer):
    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def _note(self, request: Any, context: grpc.ServicerContext) -> None:
        self._fake.requests.append(request)
        shown = dict(context.invocation_metadata())
        self._fake.authorizations.append(str(shown.get("authorization", "")))
        if self._fake.refusal:
            self._fake.refusal.abort(context)

    def CreateToken(self, request: Any, context: Any) -> access_pb2.CreateTokenResponse:
        self._note(request, context)
        return access_pb2.CreateTokenResponse(token=self._fake.tokens[-1], secret="the secret")

    def ListTokens(self, request: Any, context: Any) -> access_pb2.ListTokensResponse:
        self._note(request, context)
        return access_pb2.ListTokensResponse(tokens=self._fake.tokens)

    def RevokeToken(self, request: Any, context: Any) -> access_pb2.RevokeTokenResponse:
        self._note(request, context)
        return access_pb2.RevokeTokenResponse(token=self._fake.tokens[-1])

    def OpenPage(self, request: Any, context: Any) -> access_pb2.OpenPageResponse:
        self._note(request, context)
        return access_pb2.OpenPageResponse(url=self._fake.page_url)

    def WhoAmI(self, request: Any, context: Any) -> access_pb2.WhoAmIResponse:
        self._note(request, context)
        return access_pb2.WhoAmIResponse(name="the token 0a1b2c3d", roles=["ROLE_TRAINER"])


def blob_ref(data: bytes) -> blob_pb2.BlobRef:
    return blob_pb2.BlobRef(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


@pytest.fixture
def serve() -> Iterator[Callable[[FakeCoordinator | None], str]]:
    """Starts a server and gives its address; without a fake it knows no service at all."""
    servers: list[grpc.Server] = []

    def start(fake: FakeCoordinator | None) -> str:
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        if fake is not None:
            run_pb2_grpc.add_RunServiceServicer_to_server(_Runs(fake), server)
            subset_pb2_grpc.add_SubsetServiceServicer_to_server(_Subsets(fake), server)
            diagnosis_pb2_grpc.add_DiagnosisServiceServicer_to_server(_Diagnoses(fake), server)
            blob_pb2_grpc.add_BlobServiceServicer_to_server(_Blobs(fake), server)
            info_pb2_grpc.add_InfoServiceServicer_to_server(_Info(fake), server)
            access_pb2_grpc.add_AccessServiceServicer_to_server(_Access(fake), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def fake(serve: Callable[[FakeCoordinator | None], str]) -> FakeCoordinator:
    coordinator = FakeCoordinator()
    coordinator.address = serve(coordinator)
    coordinator.info = info_pb2.GetInfoResponse(
        protocol=worker_pb2.ProtocolVersion(major=1, minor=0),
        versions={"lipt": "0.1.0", "torch": "2.15.0"},
        dataset=info_pb2.DatasetInfo(
            source="digits",
            num_examples=1797,
            class_names=["0", "1"],
            class_counts=[900, 897],
            fingerprint="f" * 64,
            channels=1,
            height=8,
            width=8,
        ),
        default_run=config_pb2.RunConfig(model="resnet8"),
        device="cpu",
    )
    return coordinator


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real service, with a run that is ready."""
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def relay(service: Service) -> Iterator[Relay]:
    """What the test's clients talk to; runs that they have started are cancelled at the end."""
    with Relay(service.address) as relay:
        yield relay
    if relay.requests_of(run_pb2.CreateRunRequest):
        with Client(service.address) as client:
            for run in client.runs():
                if run.goes_on:
                    client.cancel(run.run_id)


@pytest.fixture
def client(relay: Relay) -> Iterator[Client]:
    with Client(relay.address) as opened:
        yield opened


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a gRPC server that knows no call."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def dead_address() -> Iterator[str]:
    """An address that refuses connections: its port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def cut() -> Cut:
    return Cut()


@pytest.fixture
def silence(stopping: threading.Event) -> Silence:
    return Silence(stopping)


@pytest.fixture
def refusal() -> type[Refusal]:
    return Refusal


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return open_dataset("digits-train")


@pytest.fixture
def subset_of() -> Callable[..., Subset]:
    """Makes a subset of some data: indices, and weights where they are given."""

    def make(
        dataset: Dataset, indices: Sequence[int], weights: Sequence[float] | None = None
    ) -> Subset:
        return made_up_subset(indices, weights, fingerprint=dataset.fingerprint)

    return make
