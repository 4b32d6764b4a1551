"""Diagnosis stream: the request, and the answer's description with the file that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from lipt.common.blobs.messages import blob_from_proto
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import DiagnosisError
from lipt.trainer.client.conversion import view_of
from lipt.trainer.connection.connection import Connection
from lipt.trainer.connection.reconnection import INTERRUPTIONS, Reconnection
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.reading import max_file_bytes, read_diagnosis
from lipt.trainer.views import ProgressView
from lipt.v1 import diagnosis_pb2

# A diagnosis reports its progress, but one step of it may take a while.
_IDLE_SECONDS = 300.0

OnProgress = Callable[[ProgressView], None]


def fetch_diagnosis(
    connection: Connection,
    request: diagnosis_pb2.DiagnoseRequest,
    on_progress: OnProgress | None,
    *,
    reconnection: Reconnection,
) -> Diagnosis:
    """Ask until the answer has come, and bring the file that it names.

    Args:
        connection: where to ask.
        request: what to diagnose by.
        on_progress: called as the computation goes on.
        reconnection: how long a broken stream is opened again.

    Raises:
        UnreachableError: the coordinator stayed away too long.
        QueueFullError: it had too much to do for too long.
        DiagnosisError: there is no description, or the file is not what it says.
    """
    description = _describe(connection, request, on_progress, reconnection)
    file, num_examples = blob_from_proto(description.file), description.num_examples
    # Refused from what is announced: what follows could be without end.
    limit = max_file_bytes(max(num_examples, 0))
    if not num_examples > 0 or file.size_bytes > limit:
        raise DiagnosisError(
            f"the coordinator announced a diagnosis of {num_examples} examples in "
            f"{file.size_bytes} bytes; {limit} can be. See its log."
        )
    content = connection.transfer(
        lambda blobs: Transfers(blobs).download_bytes(file, max_bytes=limit)
    )
    return read_diagnosis(
        content,
        num_examples=num_examples,
        fingerprint=description.fingerprint,
        run_id=description.run_id,
        manifest=_manifest(description.manifest_json),
    )


def _describe(
    connection: Connection,
    request: diagnosis_pb2.DiagnoseRequest,
    on_progress: OnProgress | None,
    reconnection: Reconnection,
) -> diagnosis_pb2.DiagnosisDescription:
    while True:
        responses = connection.stream(
            lambda of: of.diagnoses.Diagnose, request, idle_seconds=_IDLE_SECONDS
        )
        try:
            # Closed here: the stream holds the channel until it has ended.
            with closing(responses):
                return _receive(reconnection.heard(responses), on_progress)
        except INTERRUPTIONS as error:
            reconnection.pause(error)


def _receive(
    responses: Iterable[diagnosis_pb2.DiagnoseResponse], on_progress: OnProgress | None
) -> diagnosis_pb2.DiagnosisDescription:
    for response in responses:
        part = response.WhichOneof("part")
        if part == "diagnosis":
            return response.diagnosis
        if part == "progress" and on_progress:
            on_progress(view_of(ProgressView, response.progress))
    raise DiagnosisError("the coordinator sent no description of the diagnosis. Ask again.")


def _manifest(text: str) -> dict[str, Any]:
    try:
        manifest = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise DiagnosisError(f"the diagnosis' manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise DiagnosisError("the diagnosis' manifest is not a JSON object. Ask again.")
    return manifest
