"""`lipt.v1.DiagnosisService`: diagnoses over gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import grpc.aio

from lipt.common.blobs.messages import blob_from_proto, blob_to_proto
from lipt.coordinator.rpc.answering import Answering
from lipt.coordinator.rpc.peers import peer_of
from lipt.coordinator.state.records import DiagnosisRecord
from lipt.coordinator.subsets.diagnoses import Diagnoses, DiagnosisQuery
from lipt.v1 import diagnosis_pb2 as pb
from lipt.v1 import diagnosis_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class DiagnosisService(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """What trainers call."""

    def __init__(self, diagnoses: Diagnoses) -> None:
        self._diagnoses = diagnoses

    async def Diagnose(
        self, request: pb.DiagnoseRequest, context: Context
    ) -> AsyncIterator[pb.DiagnoseResponse]:
        """Compute or find a diagnosis, and say where its file is."""
        query, caller = _query(request), peer_of(context)
        with Answering(lambda report: self._diagnoses.get(query, report, caller)) as answering:
            while (latest := await answering.next_report()) is not None:
                yield pb.DiagnoseResponse(progress=pb.DiagnosisProgress(**asdict(latest)))
            diagnosis = answering.result()
        yield pb.DiagnoseResponse(diagnosis=_description(diagnosis))


def _query(request: pb.DiagnoseRequest) -> DiagnosisQuery:
    return DiagnosisQuery(
        run=request.run_id,
        proxy=request.proxy,
        features=blob_from_proto(request.features) if request.HasField("features") else None,
    )


def _description(diagnosis: DiagnosisRecord) -> pb.DiagnosisDescription:
    return pb.DiagnosisDescription(
        file=blob_to_proto(diagnosis.blob),
        fingerprint=diagnosis.fingerprint,
        num_examples=diagnosis.num_examples,
        run_id=diagnosis.run_id,
        proxy=diagnosis.proxy,
        manifest_json=json.dumps(diagnosis.manifest, sort_keys=True),
    )
