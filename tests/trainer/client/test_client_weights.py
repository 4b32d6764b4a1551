from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import (
    InvalidRequestError,
    NotACoordinatorError,
    UnreachableError,
)
from lipt.trainer.client.client import Client
from lipt.v1 import run_pb2

# A header of 640 bytes makes the first two bytes those of a pickle.
AMBIGUOUS = struct.pack("<Q", 640) + b"{}".ljust(640)


def test_uploaded_weights_can_start_a_run(fake: Any, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(AMBIGUOUS)
    blob = client.upload_weights(path)
    assert blob.sha256 == hashlib.sha256(AMBIGUOUS).hexdigest()
    assert fake.blobs[blob.sha256] == AMBIGUOUS
    client.start_run({"initialization": {"weights_sha256": blob.sha256}})
    (request,) = fake.requests_of(run_pb2.CreateRunRequest)
    assert request.config.initialization.weights_sha256 == blob.sha256


def test_an_upload_to_nobody_fails_with_the_address(dead_address: str) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError, match=dead_address):
        client.upload_weights(AMBIGUOUS)


def test_an_upload_to_another_kind_of_server_says_so(serve: Any) -> None:
    with Client(serve(None)) as client, pytest.raises(NotACoordinatorError):
        client.upload_weights(AMBIGUOUS)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("initial", run_pb2.WEIGHTS_KIND_INITIAL), ("pretrained", run_pb2.WEIGHTS_KIND_PRETRAINED)],
)
def test_weights_come_as_bytes_or_as_a_file(
    fake: Any, client: Client, tmp_path: Path, kind: str, number: int
) -> None:
    content = os.urandom(600_000)
    fake.weights = {number: content}
    path = tmp_path / "out.safetensors"
    counts: list[int] = []
    blob = client.save_weights(path, "r-1", kind, on_bytes=counts.append)
    assert path.read_bytes() == content
    assert blob.size_bytes == 600_000
    assert counts == [262_144, 262_144, 75_712]
    assert client.weights("r-1", kind) == content
    # Nothing but the file is left beside it.
    assert [item.name for item in tmp_path.iterdir()] == ["out.safetensors"]


def test_an_unknown_kind_is_refused_with_those_there_are(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"'final' weights; choose initial \(or"):
        client.weights("r-1", "final")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, b"theta*") for name in ("initial", "theta*", "theta_star")),
        *((name, b"theta_p") for name in ("pretrained", "theta_p")),
    ],
)
def test_weights_are_called_as_the_documentation_calls_them(
    fake: Any, client: Client, name: str, content: bytes
) -> None:
    fake.weights = {
        run_pb2.WEIGHTS_KIND_INITIAL: b"theta*",
        run_pb2.WEIGHTS_KIND_PRETRAINED: b"theta_p",
    }
    assert client.weights("r-1", name) == content
