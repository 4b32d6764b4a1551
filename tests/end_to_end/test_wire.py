"""What somebody on the wire sees of a run, from its first weights to its last subset.

With mTLS nothing of weights or images; without, all of it, so that the search is known to find it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lipt.common.data import open_dataset
from lipt.trainer import Client
from tests.blob_files import blob_file
from tests.certificates import Certificates
from tests.cluster import Cluster
from tests.faults.proxy import Proxy

_WINDOW_BYTES = 32
# A window that many texts could hold by chance, such as zeros, says nothing.
_MIN_DISTINCT = 12
_WINDOWS_PER_BLOB = 200


@dataclass(frozen=True)
class Recording:
    """A run as the wire saw it.

    wire: what was sent, by connection and direction.
    weights: theta* and theta_p, as safetensors files.
    blobs: everything that the coordinator has in its store, those two among it.
    """

    wire: list[bytes]
    weights: list[bytes]
    blobs: list[bytes]

    def shows(self, text: bytes) -> bool:
        return any(text in sent for sent in self.wire)


def record(
    cluster: Cluster,
    run: dict[str, Any],
    certificates: Certificates | None = None,
) -> Recording:
    """Record coordinator, worker and trainer through a whole run."""

    def flags(name: str) -> tuple[str, ...]:
        return () if certificates is None else certificates.flags(name)

    tls = None if certificates is None else certificates.files("trainer")
    # Behind the proxy its port is another: no local token is found there.
    coordinator = cluster.start_coordinator("--insecure", *flags("coordinator"))
    with Proxy(cluster.address, recording=True) as proxy:
        cluster.address = proxy.address
        worker = cluster.start_worker("recorded", *flags("worker"))
        with Client(proxy.address, tls=tls) as client:
            made = client.wait(client.start_run(run).run_id)
            client.subset(strategy="craig", fraction=0.1)
            out = cluster.directory / "theta_p.safetensors"
            client.save_weights(out)
        worker.stop()
    coordinator.stop()
    names = made.initial_weights, made.pretrained_weights
    blobs = [path.read_bytes() for path in (cluster.state / "blobs").rglob("*") if path.is_file()]
    return Recording(
        wire=[bytes(sent) for sent in proxy.recorded],
        weights=[blob_file(cluster.state, name.sha256).read_bytes() for name in names if name],
        blobs=blobs,
    )


def windows(text: bytes) -> list[bytes]:
    """Pieces of a text, here and there, that hold something."""
    draw = random.Random(0)
    starts = (draw.randrange(max(1, len(text) - _WINDOW_BYTES)) for _ in range(_WINDOWS_PER_BLOB))
    pieces = (text[start : start + _WINDOW_BYTES] for start in starts)
    return [piece for piece in pieces if len(set(piece)) >= _MIN_DISTINCT]


def images() -> list[bytes]:
    """Each of the digits: 64 bytes that tell it from the others."""
    data = open_dataset("digits")
    return [image.numpy().tobytes() for image in data.images(torch.arange(len(data)))]


def test_without_tls_the_wire_shows_weights_and_images(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    recording = record(cluster, small_run)
    for weights in recording.weights:
        pieces = windows(weights)
        assert len(pieces) > _WINDOWS_PER_BLOB / 2
        # But for those that a frame's beginning cuts in two.
        assert sum(map(recording.shows, pieces)) > 0.9 * len(pieces)
    assert sum(map(recording.shows, images())) > 100
    assert recording.shows(b"data_offsets")  # of safetensors' header


def test_with_mtls_the_wire_shows_nothing_of_weights_or_images(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path / "certs")
    recording = record(cluster, small_run, certificates)
    assert len(recording.weights) == 2
    assert sum(map(len, recording.wire)) > sum(map(len, recording.weights))
    for blob in recording.blobs:
        assert not any(map(recording.shows, windows(blob)))
    assert not any(map(recording.shows, images()))
    assert not recording.shows(b"data_offsets")
