from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from lipt.common.blobs.messages import blob_to_proto
from lipt.common.blobs.name import BlobName
from lipt.coordinator.compute.progress import OnProgress, Progressed
from lipt.coordinator.rpc.diagnoses import DiagnosisService
from lipt.coordinator.state.records import DiagnosisRecord
from lipt.coordinator.subsets.diagnoses import DiagnosisQuery
from lipt.v1 import diagnosis_pb2 as pb
from lipt.v1 import diagnosis_pb2_grpc
from tests.serving import serving

RECORD = DiagnosisRecord(
    key="k",
    run_id="r",
    proxy="ridge:learners",
    num_examples=2,
    fingerprint="f",
    features_sha256="",
    manifest={"versions": {"lipt": "0"}},
    blob=BlobName.of(b"file"),
    created_at=1.0,
)


class FakeDiagnoses:
    """Reports once, waits to be let go, and answers every query with one record."""

    def __init__(self) -> None:
        self.queries: list[DiagnosisQuery] = []
        self.let_go = asyncio.Event()
        self.left = asyncio.Event()

    async def get(
        self, query: DiagnosisQuery, on_progress: OnProgress, caller: str
    ) -> DiagnosisRecord:
        self.queries.append(query)
        on_progress(Progressed("computing", 1, 2, ahead=3))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return RECORD


@pytest.fixture
def diagnoses() -> FakeDiagnoses:
    return FakeDiagnoses()


@pytest.fixture
async def stub(diagnoses: FakeDiagnoses) -> AsyncIterator[Any]:
    service = DiagnosisService(diagnoses)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    async with (
        serving((diagnosis_pb2_grpc.add_DiagnosisServiceServicer_to_server, service)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield diagnosis_pb2_grpc.DiagnosisServiceStub(channel)


async def test_progress_comes_first_and_then_where_the_file_is(
    stub: Any, diagnoses: FakeDiagnoses
) -> None:
    features = BlobName.of(b"features")
    request = pb.DiagnoseRequest(
        run_id="latest", proxy="ridge:learners", features=blob_to_proto(features)
    )
    call = aiter(stub.Diagnose(request))
    progress = pb.DiagnosisProgress(activity="computing", done=1, total=2, ahead=3)
    assert await anext(call) == pb.DiagnoseResponse(progress=progress)
    diagnoses.let_go.set()
    (last,) = [response async for response in call]
    assert diagnoses.queries == [DiagnosisQuery("latest", "ridge:learners", features)]
    assert last.diagnosis == pb.DiagnosisDescription(
        file=blob_to_proto(RECORD.blob),
        fingerprint="f",
        num_examples=2,
        run_id="r",
        proxy="ridge:learners",
        manifest_json=json.dumps(RECORD.manifest),
    )


async def test_an_empty_request_is_of_the_data_alone(stub: Any, diagnoses: FakeDiagnoses) -> None:
    diagnoses.let_go.set()
    async for _ in stub.Diagnose(pb.DiagnoseRequest()):
        pass
    assert diagnoses.queries == [DiagnosisQuery()]


async def test_a_client_that_leaves_is_not_waited_for(stub: Any, diagnoses: FakeDiagnoses) -> None:
    call = stub.Diagnose(pb.DiagnoseRequest())
    await anext(aiter(call))
    call.cancel()
    await diagnoses.left.wait()
