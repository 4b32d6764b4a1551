"""Blobs are named by a letter and take so many bytes; a peer may have 100, all may have 150."""

from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import (
    ForeignBlobError,
    StateError,
    StorageFullError,
    UploadInProgressError,
)
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.storage.accounts import Accounts, Allowance, Quota, free_bytes, resolve_quota
from tests.clock import Clock

QUOTA = Quota(max_bytes=150, max_bytes_per_peer=100, max_unfinished=4, max_unfinished_per_peer=3)
LEASE = Allowance((AssignmentKey("r", 0), 1), max_files=2, max_file_bytes=60)


class Bench:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.live = {LEASE.lease}
        self.accounts = Accounts(QUOTA, clock=clock, is_live=lambda lease: lease in self.live)

    def begin(
        self, letter: str, size: int, peer: str = "one", allowance: Allowance | None = None
    ) -> list[str]:
        leaving = self.accounts.begin(named(letter, size), peer, allowance)
        return [sha256[0] for sha256 in leaving]

    def cut(
        self, letter: str, size: int, peer: str = "one", allowance: Allowance | None = None
    ) -> list[str]:
        leaving = self.begin(letter, size, peer, allowance)
        self.accounts.end(named(letter, size), finished=False, kept=True)
        return leaving

    def store(
        self, letter: str, size: int, peer: str = "one", allowance: Allowance | None = None
    ) -> None:
        self.begin(letter, size, peer, allowance)
        self.accounts.end(named(letter, size), finished=True, kept=False)


def named(letter: str, size: int) -> BlobName:
    return BlobName(letter * 64, size)


@pytest.fixture
def bench(clock: Clock) -> Bench:
    return Bench(clock)


def test_declared_bytes_count_from_the_start_and_stored_ones_go_on_counting(bench: Bench) -> None:
    bench.begin("a", 60)
    with pytest.raises(StorageFullError, match=r"this peer would take 101 bytes.*at most 100 are"):
        bench.begin("b", 41)
    bench.accounts.end(named("a", 60), finished=True, kept=False)
    with pytest.raises(StorageFullError, match=r"raise storage\.max_bytes") as caught:
        bench.begin("b", 41)
    assert caught.value.retry_after_seconds is None  # waiting a little does not help
    bench.store("b", 40)
    # The others have theirs.
    bench.store("c", 50, "other")
    with pytest.raises(StorageFullError, match=r"all peers together would take 151 bytes"):
        bench.begin("d", 1, "third")


def test_number_of_unfinished_uploads_is_limited_and_says_when_to_ask_again(bench: Bench) -> None:
    for letter in "abc":
        bench.cut(letter, 1)
    with pytest.raises(StorageFullError, match=r"number 4 of this peer; at most 3") as caught:
        bench.begin("d", 1)
    assert caught.value.retry_after_seconds == 10.0
    bench.cut("d", 1, "other")
    with pytest.raises(StorageFullError, match=r"number 5 of all peers together; at most 4"):
        bench.begin("e", 1, "third")


def test_upload_under_way_is_nobody_else_s(bench: Bench) -> None:
    bench.begin("a", 1)
    with pytest.raises(UploadInProgressError, match="Try again"):
        bench.begin("a", 1, "other")
    bench.accounts.end(named("a", 1), finished=False, kept=False)
    assert bench.begin("a", 1, "other") == []


def test_an_upload_counts_once_and_while_it_is_sent(bench: Bench) -> None:
    bench.cut("a", 90)
    assert bench.begin("a", 95) == []
    bench.clock.now += 1000
    with pytest.raises(StorageFullError, match="all peers together"):
        bench.begin("b", 100, "other")
    bench.accounts.end(named("a", 95), finished=False, kept=False)
    assert bench.accounts.num_unfinished() == 0
    assert bench.begin("b", 100, "other") == []


def test_silent_beginnings_make_room_the_oldest_first_and_no_more_than_needed(
    bench: Bench,
) -> None:
    for letter in "abc":
        bench.clock.now += 1
        bench.cut(letter, 30)
    bench.clock.now += 119  # a and b have been silent for 121 and 120 s
    assert bench.cut("d", 30) == ["a"]
    with pytest.raises(StorageFullError):
        bench.begin("e", 100)  # c is too young to leave
    assert bench.begin("e", 1) == ["b"]


def test_what_others_left_makes_room_when_all_have_too_much(bench: Bench) -> None:
    bench.cut("a", 100, "gone")
    bench.clock.now += 121
    assert bench.begin("b", 100) == ["a"]


def test_trainers_that_filled_everything_keep_no_worker_from_handing_in(bench: Bench) -> None:
    bench.store("a", 100, "trainer")
    bench.store("b", 50, "other trainer")
    for letter in "cd":
        bench.store(letter, 60, "worker", LEASE)
    for letter, size in (("e", 1), ("c", 61)):
        with pytest.raises(ForeignBlobError, match="allows 2 files of at most 60 bytes"):
            bench.begin(letter, size, "worker", LEASE)
    # One that goes on is not new, and files of a lease that lives are not left over.
    assert bench.begin("c", 60, "worker", LEASE) == []


@pytest.mark.parametrize(
    ("peers", "trained", "whose", "free"),
    [
        # 120 of the peer's 100 bytes are left over, and another worker notices nothing.
        (("greedy", "greedy", "greedy"), 0, "this peer would take 120 bytes", True),
        # 180 of all 150 bytes are left over: the next file is charged to anybody.
        (("gone", "left", "lost"), 100, "all peers together would take 160 bytes", False),
    ],
)
def test_files_of_leases_that_are_over_are_limited_too(
    bench: Bench, peers: tuple[str, ...], trained: int, whose: str, free: bool
) -> None:
    for number, (letter, peer) in enumerate(zip("abc", peers, strict=True)):
        lease = Allowance((AssignmentKey("r", 9), number), max_files=1, max_file_bytes=60)
        bench.live = {lease.lease}
        bench.store(letter, 60, peer, lease)
    bench.live = {LEASE.lease}
    bench.store("d", trained, "trainer")
    with pytest.raises(StorageFullError, match=whose):
        bench.begin("e", 60, "greedy", LEASE)
    if free:
        assert bench.begin("e", 60, "worker", LEASE) == []


def test_what_a_record_names_counts_no_more_unless_it_is_under_way(bench: Bench) -> None:
    bench.store("a", 60)
    bench.begin("b", 40)
    bench.accounts.forget(named(letter, 1).sha256 for letter in "abc")
    with pytest.raises(StorageFullError):
        bench.begin("c", 61)
    assert bench.begin("c", 60) == []


def test_what_an_earlier_process_left_counts_in_all_and_for_nobody(bench: Bench) -> None:
    bench.accounts.restore({named("a", 1).sha256: 80}, {named("b", 1).sha256: 20})
    assert bench.accounts.num_bytes(finished=True) == 80
    assert bench.accounts.num_bytes(finished=False) == 20
    assert bench.accounts.num_unfinished() == 1
    with pytest.raises(StorageFullError, match="all peers together would take 160"):
        bench.begin("c", 60)
    # Who goes on with it has it from then on.
    bench.cut("b", 60)
    with pytest.raises(StorageFullError, match="this peer would take 101"):
        bench.begin("c", 41)


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(300, 150, 512, 32)),
        ({"max_bytes": 80}, Quota(80, 40, 512, 32)),
        ({"max_bytes_per_peer": 30}, Quota(300, 30, 512, 32)),
        ({"max_bytes_per_peer": 900, "max_unfinished": 5}, Quota(300, 300, 5, 5)),
    ],
)
def test_what_is_not_set_follows_the_disk_and_no_peer_may_more_than_all(
    given: dict[str, int], quota: Quota
) -> None:
    assert resolve_quota(StorageSettings.model_validate(given), usable_bytes=900) == quota


def test_free_bytes_are_the_disk_s(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(StateError, match="cannot be used"):
        free_bytes(tmp_path / "nowhere")
