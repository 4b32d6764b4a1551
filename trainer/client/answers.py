"""Answers with progress: a subset or a diagnosis is asked for, described, and its file fetched.

Nothing that comes is believed: sizes are compared with what was announced before a file is asked
for, and values with their digest or with each other before they are given on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import grpc

from lipt.common.blobs.blob import blob_from_proto
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import DiagnosisError, SubsetError
from lipt.common.subsets import packed_sizes, unpack
from lipt.trainer.client.connection import INTERRUPTIONS, Connection, Reconnection, Stubs
from lipt.trainer.client.conversion import view_of
from lipt.trainer.diagnosis.diagnosis import Diagnosis, max_file_bytes, read_diagnosis
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import ProgressView
from lipt.v1 import diagnosis_pb2, subset_pb2

# A computation reports its progress, but one step of it may take a while.
_IDLE_SECONDS = 300.0

OnProgress = Callable[[ProgressView], object]
RequestT = TypeVar("RequestT")
# A subset's or a diagnosis' response: progress, or the description.
ResponseT = TypeVar("ResponseT", bound=Any)
Refusal = type[SubsetError] | type[DiagnosisError]


def fetch_subset(
    connection: Connection,
    request: subset_pb2.GetSubsetRequest,
    on_progress: OnProgress | None,
    reconnection: Reconnection,
) -> Subset:
    """Ask for a subset until it has come.

    Args:
        connection: where to ask.
        request: what for.
        on_progress: called as the computation goes on.
        reconnection: how long a broken stream is opened again.

    Raises:
        UnreachableError: the coordinator stayed away too long.
        QueueFullError: it had too much to do for too long.
        SubsetError: there is no description, or the file is not what it says.
    """
    described: subset_pb2.Subset = _ask(
        connection,
        lambda of: of.subsets.GetSubset,
        request,
        on_progress,
        reconnection,
        refusal=SubsetError,
    )
    file, num_examples = blob_from_proto(described.file), described.num_examples
    if file.size_bytes not in packed_sizes(num_examples):
        raise SubsetError(
            f"the coordinator announced a subset of {num_examples} examples in {file.size_bytes} "
            "bytes, which cannot be. See its log."
        )
    content = connection.transfer(
        lambda blobs: Transfers(blobs).download_bytes(file, max_bytes=file.size_bytes)
    )
    examples = unpack(content, num_examples)
    return Subset(
        indices=examples.indices_K,
        weights=examples.weights_K,
        fingerprint=described.fingerprint,
        digest=described.digest,
        strategy=described.strategy,
        manifest=_manifest(described.manifest_json, SubsetError),
        kept=described.kept,
        handed_over=True,
    )


def fetch_diagnosis(
    connection: Connection,
    request: diagnosis_pb2.DiagnoseRequest,
    on_progress: OnProgress | None,
    reconnection: Reconnection,
) -> Diagnosis:
    """Ask for a diagnosis until it has come; arguments and errors as of `fetch_subset`.

    Raises:
        DiagnosisError: there is no description, or the file is not what it says.
    """
    described: diagnosis_pb2.DiagnosisDescription = _ask(
        connection,
        lambda of: of.diagnoses.Diagnose,
        request,
        on_progress,
        reconnection,
        refusal=DiagnosisError,
    )
    file, num_examples = blob_from_proto(described.file), described.num_examples
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
        fingerprint=described.fingerprint,
        run_id=described.run_id,
        manifest=_manifest(described.manifest_json, DiagnosisError),
    )


def _ask(
    connection: Connection,
    method: Callable[[Stubs], grpc.UnaryStreamMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    on_progress: OnProgress | None,
    reconnection: Reconnection,
    *,
    refusal: Refusal,
) -> Any:
    """The description that ends an answer's progress; a stream that breaks is asked for again."""
    while True:
        responses = connection.stream(method, request, idle_seconds=_IDLE_SECONDS)
        try:
            # Closed here: the stream holds the channel until it has ended.
            with closing(responses):
                for response in reconnection.heard(responses):
                    part = response.WhichOneof("part")
                    if part == "progress" and on_progress:
                        on_progress(view_of(ProgressView, response.progress))
                    elif part not in ("progress", None):
                        return getattr(response, part)
                raise refusal("the coordinator sent no description of the answer. Ask again.")
        except INTERRUPTIONS as error:
            reconnection.pause(error)


def _manifest(text: str, refusal: Refusal) -> dict[str, Any]:
    try:
        manifest = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise refusal(f"the answer's manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise refusal("the answer's manifest is not a JSON object. Ask again.")
    return manifest
