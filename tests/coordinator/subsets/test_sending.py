from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError
from lipt.common.subsets.difference import Difference, Examples, apply_difference
from lipt.common.subsets.packing import PackedRun, unpack
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, SubsetRecord
from lipt.coordinator.subsets import sending as sending_module
from lipt.coordinator.subsets.sending import Accepted, Sending, SubsetContents
from lipt.coordinator.subsets.stored_examples import StoredExamples
from lipt.coordinator.subsets.verification import Verification
from tests.coordinator.subsets.test_service import MakeRun


class Stored:
    """Subsets in a database, as selection leaves them there."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self.database = database
        self.blobs = blobs
        self.contents = SubsetContents(database, Verification(blobs))

    async def save(self, indices: range | list[int], run_id: str = "r") -> SubsetRecord:
        indices_K = np.array(indices, dtype="<i8")
        content = indices_K.tobytes() + np.ones(len(indices_K), "<f4").tobytes()
        blob = self.blobs.put_bytes(content)
        record = SubsetRecord(
            key=f"{run_id} {blob.sha256}",
            run_id=run_id,
            strategy="grand",
            num_examples=len(indices_K),
            balanced=True,
            fingerprint="f",
            digest=blob.sha256,
            weights_sha256="w",
            manifest={},
            blob=blob,
            created_at=1.0,
        )
        await self.database.save_subset(record)
        return record


@pytest.fixture
async def stored(tmp_path: Path, make_run: MakeRun) -> AsyncIterator[Stored]:
    database = Database.open(tmp_path / "lipt.db")
    for run_id in ("r", "other"):
        run: RunRecord = make_run().changed(run_id=run_id, name=run_id, request_id=run_id)
        await database.save_run(run, ())
    yield Stored(database, BlobStore(tmp_path, max_blob_bytes=2**24))
    await database.close()


def joined(sending: Sending) -> Examples | Difference:
    """All parts in one, as a trainer puts them together."""
    parts = [part for part in sending.parts() if not isinstance(part, PackedRun)]
    examples = [part if isinstance(part, Examples) else part.changed for part in parts]
    whole = Examples(
        np.concatenate([part.indices_K for part in examples]),
        np.concatenate([part.weights_K for part in examples]),
    )
    removed = [part.removed_R for part in parts if isinstance(part, Difference)]
    return Difference(np.concatenate(removed), whole) if removed else whole


async def test_few_changes_are_sent_as_a_difference(stored: Stored) -> None:
    old, new = await stored.save(range(100)), await stored.save(range(10, 110))
    sending = await stored.contents.sending(new, Accepted(old.digest))
    assert sending.difference_to == old.digest
    (part,) = sending.parts()
    assert isinstance(part, Difference)
    assert part.removed_R.tolist() == list(range(10))
    assert part.changed.indices_K.tolist() == list(range(100, 110))


async def test_many_changes_are_sent_in_full(stored: Stored) -> None:
    old, new = await stored.save(range(100)), await stored.save(range(90, 190))
    sending = await stored.contents.sending(new, Accepted(old.digest))
    assert sending.difference_to == ""
    (part,) = sending.parts()
    assert isinstance(part, Examples)
    assert part.indices_K.tolist() == list(range(90, 190))


async def test_the_turning_point_is_where_both_are_as_long(stored: Stored) -> None:
    # Below 128 an index takes 1 byte and a weight 4: 60 examples are 300 bytes, an example
    # that is replaced is 1 + 5, so that 50 replaced ones are as long as the whole list.
    old = await stored.save(range(60))
    for replaced, difference in ((49, True), (50, False)):
        new = await stored.save(range(replaced, 60 + replaced))
        sending = await stored.contents.sending(new, Accepted(old.digest))
        assert bool(sending.difference_to) is difference


async def test_the_same_subset_again_is_nothing_to_send(stored: Stored) -> None:
    old = await stored.save(range(100))
    sending = await stored.contents.sending(old, Accepted(old.digest))
    assert sending.difference_to == old.digest
    assert list(sending.parts()) == []


@pytest.mark.parametrize("previous", ["", "0" * 64, "no digest at all"])
async def test_an_unknown_previous_subset_is_as_none(stored: Stored, previous: str) -> None:
    new = await stored.save(range(100))
    assert (await stored.contents.sending(new, Accepted(previous))).difference_to == ""


async def test_another_runs_subset_is_as_none(stored: Stored) -> None:
    old, new = await stored.save(range(100), "other"), await stored.save(range(1, 100))
    assert (await stored.contents.sending(new, Accepted(old.digest))).difference_to == ""


@pytest.mark.parametrize("damage", ["gone", "changed"])
async def test_a_previous_subset_that_cannot_be_read_is_as_none(
    stored: Stored, damage: str
) -> None:
    old, new = await stored.save(range(100)), await stored.save(range(1, 100))
    path = stored.blobs.path(old.blob)
    path.unlink()
    if damage == "changed":
        path.write_bytes(b"?")
    assert (await stored.contents.sending(new, Accepted(old.digest))).difference_to == ""


@pytest.mark.parametrize("previous", ["whole", "difference"])
async def test_large_ones_come_in_parts(stored: Stored, previous: str) -> None:
    old = await stored.save(range(200_000))
    new = await stored.save([*range(40_000, 200_000), *range(500_000, 520_000)])
    digest = old.digest if previous == "difference" else ""
    sending = await stored.contents.sending(new, Accepted(digest))
    assert len(list(sending.parts())) == (3 if digest else 11)
    content = joined(sending)
    if isinstance(content, Difference):
        before = Examples(np.arange(200_000), np.ones(200_000, np.float32))
        content = apply_difference(before, content)
    assert content.indices_K[[0, 159_999, 160_000, -1]].tolist() == [
        40_000,
        199_999,
        500_000,
        519_999,
    ]
    assert len(content) == 180_000


async def test_packed_a_subset_is_sent_run_by_run(stored: Stored) -> None:
    new = await stored.save(range(0, 300_000, 2))
    sending = await stored.contents.sending(new, Accepted(packed=True))
    runs = [unpack(part) for part in sending.parts() if isinstance(part, PackedRun)]
    assert [len(run) for run in runs] == [65_536, 65_536, 18_928]
    assert np.array_equal(np.concatenate([run.indices_K for run in runs]), np.arange(0, 300_000, 2))


@pytest.mark.parametrize("packed", [True, False])
async def test_no_more_is_read_than_is_sent(
    stored: Stored, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = await stored.save(range(150_000))
    read: list[int] = []
    whole = StoredExamples.read

    def counted(self: StoredExamples, place: slice | None = None) -> Examples:
        examples = whole(self, place)
        read.append(len(examples))
        return examples

    monkeypatch.setattr(StoredExamples, "read", counted)
    parts = (await stored.contents.sending(new, Accepted(packed=packed))).parts()
    assert read == []
    next(parts)
    assert read == [65_536 if packed else 16_384]
    assert sum(1 for _ in parts) == (2 if packed else 9)
    assert sum(read) == 150_000


@pytest.mark.parametrize("packed", [True, False])
async def test_a_broken_stream_goes_on_where_it_stopped(stored: Stored, packed: bool) -> None:
    new = await stored.save(range(100))
    accepted = Accepted(packed=packed, received=new.digest, num_received=60)
    sending = await stored.contents.sending(new, accepted)
    assert sending.resumed_at == 60
    (part,) = sending.parts()
    examples = unpack(part) if isinstance(part, PackedRun) else part
    assert isinstance(examples, Examples)
    assert examples.indices_K.tolist() == list(range(60, 100))


async def test_what_has_come_of_another_subset_does_not_count(stored: Stored) -> None:
    new = await stored.save(range(100))
    accepted = Accepted(received="0" * 64, num_received=60)
    assert (await stored.contents.sending(new, accepted)).resumed_at == 0


@pytest.mark.parametrize(("claimed", "resumed_at"), [(-5, 0), (100, 100), (10**9, 100)])
async def test_what_a_trainer_claims_to_have_is_kept_in_bounds(
    stored: Stored, claimed: int, resumed_at: int
) -> None:
    new = await stored.save(range(100))
    accepted = Accepted(packed=True, received=new.digest, num_received=claimed)
    sending = await stored.contents.sending(new, accepted)
    assert sending.resumed_at == resumed_at
    assert len(list(sending.parts())) == (1 if resumed_at == 0 else 0)


async def test_who_has_a_beginning_is_sent_the_rest_and_no_difference(stored: Stored) -> None:
    old, new = await stored.save(range(100)), await stored.save(range(1, 101))
    accepted = Accepted(old.digest, packed=True, received=new.digest, num_received=99)
    sending = await stored.contents.sending(new, accepted)
    assert (sending.difference_to, sending.resumed_at) == ("", 99)


async def test_a_difference_has_to_be_shorter_than_what_is_packed(stored: Stored) -> None:
    # 60 examples in a row are 8 bytes and a weight of 4, and one that is replaced is 1 + 5.
    old = await stored.save(range(60))
    for replaced, difference in ((1, True), (2, False)):
        new = await stored.save(range(replaced, 60 + replaced))
        sending = await stored.contents.sending(new, Accepted(old.digest, packed=True))
        assert bool(sending.difference_to) is difference


async def test_very_long_ones_are_not_compared(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_module, "_MOST_COMPARED", 100)
    old, new = await stored.save(range(101)), await stored.save(range(1, 102))
    short = await stored.save(range(1, 101))
    for one, other in ((old, new), (new, old), (old, short), (short, old)):
        sending = await stored.contents.sending(other, Accepted(one.digest))
        assert sending.difference_to == ""


async def test_a_file_that_is_cut_while_it_is_sent_is_told(stored: Stored) -> None:
    new = await stored.save(range(150_000))
    parts = (await stored.contents.sending(new, Accepted(packed=True))).parts()
    next(parts)
    path = stored.blobs.path(new.blob)
    path.write_bytes(path.read_bytes()[:-4])
    next(parts)
    with pytest.raises(CorruptBlobError, match="ends before example 150000 of 150000"):
        next(parts)
