"""A long subset over a network that cuts, from the coordinator's own servicer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.subsets.packing import PackedRun, unpack
from lipt.coordinator.rpc.subsets import SubsetService
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.sending import Accepted, Sending, SubsetContents
from lipt.coordinator.subsets.service import Answer
from lipt.coordinator.subsets.verification import Verification
from lipt.trainer.client import subset_reception
from lipt.trainer.client.subset_stream import fetch_subset, subset_request
from lipt.trainer.connection.connection import Connection
from lipt.trainer.connection.reconnection import Reconnection
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2_grpc
from tests.faults.conftest import Record
from tests.faults.proxy import Fault, Proxy
from tests.serving import serving

# Ten runs of 41 KB.
INDICES_K = np.cumsum(np.random.default_rng(0).geometric(0.1, 10 * 65_536))
NUM_CUTS = 3


class Stored:
    """One stored subset, which answers every question."""

    def __init__(self, folder: Path, database: Database) -> None:
        content = INDICES_K.astype("<i8").tobytes() + np.ones(len(INDICES_K), "<f4").tobytes()
        blobs = BlobStore(folder, max_blob_bytes=2**24)
        self.blob = blobs.put_bytes(content)
        self.accepted: list[Accepted] = []
        self._contents = SubsetContents(database, Verification(blobs))

    async def get(self, *_: object) -> Answer:
        record = SubsetRecord(
            key="k",
            run_id="r",
            strategy="grand",
            num_examples=len(INDICES_K),
            balanced=True,
            fingerprint="f",
            digest=self.blob.sha256,
            weights_sha256="w",
            manifest={},
            blob=self.blob,
            created_at=1.0,
        )
        return Answer(record)

    async def sending(self, subset: SubsetRecord, accepted: Accepted) -> Sending:
        self.accepted.append(accepted)
        return await self._contents.sending(subset, accepted)


def fetch(address: str) -> Subset:
    request = subset_request("r", "grand", fraction=0.1, budget=None, balanced=None, options=None)
    patience = Reconnection(60.0, expected=True)
    connection = Connection(address, None)
    try:
        return fetch_subset(connection, request, None, previous=None, reconnection=patience)
    finally:
        connection.close()


async def test_a_subset_that_is_cut_comes_without_one_example_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    counts: list[int] = []

    def counted(run: PackedRun) -> Any:
        examples = unpack(run)
        counts.append(len(examples))
        return examples

    monkeypatch.setattr(subset_reception, "unpack", counted)
    database = Database.open(tmp_path / "lipt.db")
    stored = Stored(tmp_path / "store", database)
    service = SubsetService(stored)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    # Each connection gets more than two runs far.
    faults = [Fault(upstream=False, offset_bytes=100_000) for _ in range(NUM_CUTS)]
    async with serving((subset_pb2_grpc.add_SubsetServiceServicer_to_server, service)) as address:
        with Proxy(address, faults) as proxy:
            subset = await asyncio.to_thread(fetch, proxy.address)
            assert not proxy.faults
    await database.close()
    assert np.array_equal(subset.indices, INDICES_K)
    assert subset.digest == stored.blob.sha256
    assert counts == [65_536] * 10
    begun = [accepted.num_received for accepted in stored.accepted]
    assert len(begun) == NUM_CUTS + 1
    assert begun == sorted(begun)
    # A cut may take along what lay in sockets, and not what was read.
    assert begun[0] == 0 < begun[-1]
    record(f"{proxy.bytes_down / 1000:.0f} kB for 410 kB, cut {NUM_CUTS} times")
