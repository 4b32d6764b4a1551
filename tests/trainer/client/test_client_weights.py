from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import (
    InvalidRequestError,
    NotACoordinatorError,
    UnreachableError,
)
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.common.weights.files import read_specs
from lipt.trainer.client.client import Client
from lipt.trainer.views import WeightsKind
from lipt.v1 import blob_pb2
from tests.relay import Relay
from tests.service import READY, SMALLEST, Service

# A header of 640 bytes makes the first two bytes those of a pickle.
AMBIGUOUS = struct.pack("<Q", 640) + b"{}".ljust(640)


def test_weights_that_look_like_a_pickle_are_uploaded_once(
    service: Service, relay: Relay, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(AMBIGUOUS)
    blob = client.upload_weights(path)
    assert blob.sha256 == hashlib.sha256(AMBIGUOUS).hexdigest()
    assert service.blob(blob.sha256) == AMBIGUOUS
    assert client.upload_weights(AMBIGUOUS) == blob
    assert len(relay.requests_of(blob_pb2.WriteBlobRequest)) == 1


def test_uploaded_weights_can_start_a_run(service: Service, client: Client) -> None:
    weights = client.weights(READY)
    run = client.start_run(SMALLEST, name="from-theta_p", initial_weights=weights)
    assert run.config.initialization.weights_sha256 == hashlib.sha256(weights).hexdigest()


def test_an_upload_to_nobody_fails_with_the_address(dead_address: str) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError, match=dead_address):
        client.upload_weights(AMBIGUOUS)


def test_an_upload_to_another_kind_of_server_says_so(stranger: str) -> None:
    with Client(stranger) as client, pytest.raises(NotACoordinatorError):
        client.upload_weights(AMBIGUOUS)


@pytest.mark.parametrize("kind", ["initial", "pretrained"])
def test_weights_come_as_bytes_or_as_a_file(
    service: Service, client: Client, tmp_path: Path, kind: str
) -> None:
    expected: Any = getattr(service.ready, f"{kind}_weights")
    path = tmp_path / "out.safetensors"
    counts: list[int] = []
    blob = client.save_weights(path, READY, kind, on_bytes=counts.append)
    assert blob == expected
    assert counts == [CHUNK_BYTES, expected.size_bytes - CHUNK_BYTES]
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == expected.sha256
    assert read_specs(path)
    assert client.weights(READY, kind) == content
    # Nothing but the file is left beside it.
    assert [item.name for item in tmp_path.iterdir()] == ["out.safetensors"]


def test_an_unknown_kind_is_refused_with_those_there_are(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"'final' weights; choose initial \(or"):
        client.weights(READY, "final")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, WeightsKind.INITIAL) for name in ("initial", "theta*", "theta_star")),
        *((name, WeightsKind.PRETRAINED) for name in ("pretrained", "theta_p")),
    ],
)
def test_weights_are_called_as_the_documentation_calls_them(name: str, kind: WeightsKind) -> None:
    assert WeightsKind.parse(name) is kind
