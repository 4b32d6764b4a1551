"""Computed answers: subsets, diagnoses, mixtures and weights, requested through interruptions.

Sizes are checked before a file is fetched, and its content before it is returned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipt.common.blobs.blob import BlobName, blob_from_proto
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import DiagnosisError, InvalidRequestError, SubsetError
from lipt.common.nested import parse_json
from lipt.common.subsets import packed_sizes, unpack
from lipt.trainer.client.connection import RESTORE_SECONDS, Connection
from lipt.trainer.diagnosis.diagnosis import Diagnosis, max_file_bytes, read_diagnosis
from lipt.trainer.files import rename_finished
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import ProgressView, WeightsKind, view_of
from lipt.v1 import blob_pb2, diagnosis_pb2, mixture_pb2, run_pb2, subset_pb2

if TYPE_CHECKING:
    from lipt.trainer.mixture import Mixture

# Far above any model that selects examples.
_MAX_WEIGHTS_BYTES = 16 * 1024**3
# A computation reports progress, but a single step may take a while.
_COMPUTING_SECONDS = 300.0

OnProgress = Callable[[ProgressView], object]


def fetch_subset(
    connection: Connection,
    request: subset_pb2.GetSubsetRequest,
    on_progress: OnProgress | None,
) -> Subset:
    ask = partial(connection.stream, lambda of: of.subsets.GetSubset, request)
    described, manifest = _described(connection, ask, on_progress, SubsetError)
    file, num_examples = described.file, described.num_examples
    if file.size_bytes not in packed_sizes(num_examples, described.num_classes):
        raise SubsetError(
            f"the coordinator announced a subset of {num_examples} examples in {file.size_bytes} "
            "bytes, which cannot be. See its log."
        )
    content = _content(connection, file, file.size_bytes)
    examples = unpack(content, num_examples, described.num_classes)
    return Subset(
        indices=examples.indices_K,
        weights=examples.weights_K,
        soft_labels=examples.soft_labels_KC,
        fingerprint=described.fingerprint,
        digest=described.digest,
        strategy=described.strategy,
        manifest=manifest,
        kept=described.kept,
        no_copy=True,
    )


def fetch_diagnosis(
    connection: Connection,
    request: diagnosis_pb2.DiagnoseRequest,
    on_progress: OnProgress | None,
) -> Diagnosis:
    ask = partial(connection.stream, lambda of: of.diagnoses.Diagnose, request)
    described, manifest = _described(connection, ask, on_progress, DiagnosisError)
    file, num_examples = described.file, described.num_examples
    limit = max_file_bytes(max(num_examples, 0))
    if not num_examples > 0 or file.size_bytes > limit:
        raise DiagnosisError(
            f"the coordinator announced a diagnosis of {num_examples} examples in "
            f"{file.size_bytes} bytes; {limit} can be. See its log."
        )
    return read_diagnosis(
        _content(connection, file, limit),
        num_examples=num_examples,
        fingerprint=described.fingerprint,
        run_id=described.run_id,
        manifest=manifest,
    )


def fetch_mixture(
    connection: Connection,
    request: mixture_pb2.GetMixtureRequest,
    on_progress: OnProgress | None,
) -> Mixture:
    # They import torch, which a client needs for little else.
    from lipt.core.selection.by_source import MAX_MIXTURE_BYTES  # noqa: PLC0415
    from lipt.trainer.mixture import Mixture  # noqa: PLC0415

    ask = partial(connection.stream, lambda of: of.mixtures.GetMixture, request)
    described, manifest = _described(connection, ask, on_progress, SubsetError)
    if described.file.size_bytes > MAX_MIXTURE_BYTES:
        raise SubsetError(
            f"the coordinator announced a mixture of {described.file.size_bytes} bytes; "
            f"{MAX_MIXTURE_BYTES} can be. See its log."
        )
    content = _content(connection, described.file, MAX_MIXTURE_BYTES)
    mixture = Mixture.from_json(content, "the coordinator's answer")
    return replace(mixture, manifest={**mixture.manifest, **manifest})


def fetch_weights(connection: Connection, run: str, kind: str) -> bytes:
    return _content(connection, _weights(connection, run, kind), _MAX_WEIGHTS_BYTES)


def save_weights(connection: Connection, path: Path, run: str, kind: str) -> BlobName:
    name = blob_from_proto(_weights(connection, run, kind))
    # Beside the file, so that the last step is a rename.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lipt-") as folder:
        store = BlobStore(Path(folder), max_blob_bytes=_MAX_WEIGHTS_BYTES)
        part = connection.transfer(lambda blobs: Transfers(blobs).download(name, store))
        rename_finished(part, path)
    return name


def _weights(connection: Connection, run: str, kind: str) -> blob_pb2.BlobRef:
    if kind not in set(WeightsKind):
        raise InvalidRequestError(
            f"there are no {kind!r} weights; choose {' or '.join(WeightsKind)}."
        )
    request = run_pb2.GetWeightsRequest(run_id=run, kind=f"WEIGHTS_KIND_{kind.upper()}")
    answer = connection.unary(lambda of: of.runs.GetWeights, request, seconds=RESTORE_SECONDS)
    return answer.weights


def _described(
    connection: Connection,
    ask: Callable[..., Iterator[Any]],
    on_progress: OnProgress | None,
    refusal: type[SubsetError | DiagnosisError],
) -> tuple[Any, dict[str, Any]]:
    report = on_progress or (lambda _: None)
    reconnection = connection.reconnection(lambda why: report(ProgressView(why, 0, 0)))

    def responses() -> Iterator[Any]:
        yield from ask(idle_seconds=_COMPUTING_SECONDS)
        raise refusal("the coordinator sent no description of the answer. Ask again.")

    # Closed explicitly: the stream holds the channel until it ends.
    with closing(reconnection.resumed(responses)) as messages:
        for message in messages:
            part = message.WhichOneof("part")
            if part == "progress":
                report(view_of(ProgressView, message.progress))
            elif part is not None:
                described = getattr(message, part)
                break
    try:
        manifest = parse_json(described.manifest_json or "{}")
    except ValueError as error:
        raise refusal(f"the answer's manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise refusal("the answer's manifest is not a JSON object. Ask again.")
    return described, manifest


def _content(connection: Connection, file: Any, max_bytes: int) -> bytes:
    name = blob_from_proto(file)
    return connection.transfer(
        lambda blobs: Transfers(blobs).download_bytes(name, max_bytes=max_bytes)
    )
