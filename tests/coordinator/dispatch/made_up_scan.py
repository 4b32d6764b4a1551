"""A made-up pass over ten examples in three ranges, and workers that may share it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.common.images.formats import ImageFormat
from lipt.coordinator.compute.scan import Scan, ScanOpened
from lipt.coordinator.dispatch.workers import WorkerRecord

VERSIONS = {"lipt": "0.1.0", "torch": "2", "cpu": "x"}
THETA_P = BlobName.of(b"theta_p")
SCAN = Scan(
    ScoringTask(
        model="resnet8",
        num_classes=3,
        image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
        fingerprint="f" * 64,
        start=0,
        stop=10,
        batch_size=4,
        threads=1,
    ),
    THETA_P,
    num_features=2,
    range_examples=4,
    kind="cpu (x), torch 2",
    lipt="0.1.0",
)
OPENED = ScanOpened("", 0, 0, scan_id=SCAN.scan_id, scan=SCAN)


def seeing_worker(name: str, *, has_data: bool = True, **facts: Any) -> WorkerRecord:
    """A worker of the scan's kind, with the data before it; `facts` are what differs."""
    record = WorkerRecord(name, name, "cpu", VERSIONS, (), heard_at=0.0, has_data=has_data)
    return replace(record, **facts)
