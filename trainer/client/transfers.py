"""Transfers of blobs between the coordinator and files here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import InvalidRequestError
from lipt.trainer.client.conversion import view_of
from lipt.trainer.connection.connection import Connection
from lipt.trainer.views import BlobView, WeightsKind
from lipt.trainer.writing.files import place
from lipt.v1 import run_pb2

OnBytes = Callable[[int], object]

# What a peer may make this side keep; far over any model that is selected with.
MAX_BYTES = 16 * 1024**3


def find_weights(connection: Connection, run: str, kind: str) -> BlobView:
    """The name of a run's weights.

    Raises:
        RunNotReadyError: it has none yet; the message says how far it is.
        InvalidRequestError: there is no such kind.
    """
    if kind not in set(WeightsKind):
        raise InvalidRequestError(
            f"there are no {kind!r} weights; choose one of {', '.join(WeightsKind)}."
        )
    request = run_pb2.GetWeightsRequest(run_id=run, kind=f"WEIGHTS_KIND_{kind.upper()}")
    return view_of(BlobView, connection.unary(lambda of: of.runs.GetWeights, request).weights)


def upload_blob(
    connection: Connection, source: Path | bytes, on_bytes: OnBytes | None = None
) -> BlobView:
    """Store a file, or a content, at the coordinator.

    Raises:
        LiptError: as `lipt.common.blobs.transfer.Transfers.upload`, with the address.
    """
    name = connection.transfer(lambda blobs: Transfers(blobs, on_bytes=on_bytes).upload(source))
    return BlobView(name.sha256, name.size_bytes)


def read_blob(connection: Connection, blob: BlobView) -> bytes:
    """A blob's content.

    Raises:
        LiptError: as `lipt.common.blobs.transfer.Transfers.download_bytes`, with the address.
    """
    name = BlobName(blob.sha256, blob.size_bytes)
    return connection.transfer(
        lambda blobs: Transfers(blobs).download_bytes(name, max_bytes=MAX_BYTES)
    )


def save_blob(
    connection: Connection, blob: BlobView, path: Path, on_bytes: OnBytes | None = None
) -> None:
    """Write a blob to a file, whole or not at all, a piece at a time.

    Raises:
        LiptError: as `lipt.common.blobs.transfer.Transfers.download`, with the address.
        OSError: the directory is missing or cannot be written to.
    """
    name = BlobName(blob.sha256, blob.size_bytes)
    # Beside the file, so that the last step is a rename.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lipt-") as folder:
        store = BlobStore(Path(folder), max_blob_bytes=MAX_BYTES)
        place(
            connection.transfer(
                lambda blobs: Transfers(blobs, on_bytes=on_bytes).download(name, store)
            ),
            path,
        )
