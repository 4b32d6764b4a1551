import hashlib
import struct
from pathlib import Path

import hypothesis.strategies as st
import torch
from hypothesis import given

from lipt.common.config.run_config import FingerprintKind
from lipt.common.data import fingerprint, open_dataset
from lipt.common.data.sources.rows import sampled_rows

LABELS_N = torch.arange(300) % 3


def raw(row: int) -> bytes:
    return bytes([row % 256]) * 3


def test_both_are_digests_of_the_documented_bytes() -> None:
    labels_N, rows = torch.tensor([2, 0]), (b"first", b"2nd")
    head = struct.pack("<QQqq", 2, 3, 2, 0)
    content = b"lipt-dataset-1" + head
    content += struct.pack("<QQ", 0, 5) + b"first" + struct.pack("<QQ", 1, 3) + b"2nd"
    assert fingerprint(labels_N, 3, rows.__getitem__) == hashlib.sha256(content).hexdigest()
    content = b"lipt-dataset-full-1" + head
    content += hashlib.sha256(b"first").digest() + hashlib.sha256(b"2nd").digest()
    expected = "full-" + hashlib.sha256(content).hexdigest()
    full = FingerprintKind.FULL
    for num_threads in (1, 3):
        found = fingerprint(labels_N, 3, rows.__getitem__, full, num_threads=num_threads)
        assert found == expected


@given(row=st.integers(0, 299), label=st.integers(0, 2))
def test_every_label_counts_and_full_ones_miss_no_row(row: int, label: int) -> None:
    def other(asked: int) -> bytes:
        return b"changed" if asked == row else raw(asked)

    full = FingerprintKind.FULL
    assert fingerprint(LABELS_N, 3, other, full) != fingerprint(LABELS_N, 3, raw, full)
    sampled = fingerprint(LABELS_N, 3, raw)
    assert (fingerprint(LABELS_N, 3, other) != sampled) == (row in sampled_rows(300))
    changed_N = LABELS_N.clone()
    changed_N[row] = label
    assert (fingerprint(changed_N, 3, raw) == sampled) == (label == row % 3)


def test_samples_64_evenly_spaced_rows_and_bytes_cannot_move_between_rows() -> None:
    assert sampled_rows(3) == [0, 1, 2]
    assert sampled_rows(64) == list(range(64))
    assert sampled_rows(127) == list(range(0, 127, 2))
    assert len(set(sampled_rows(65))) == 64
    assert sampled_rows(50_000)[:2] == [0, 793]
    assert sampled_rows(50_000)[-1] == 49_999

    def split(at: int) -> str:
        return fingerprint(torch.tensor([0, 1]), 2, lambda row: (b"abcd"[:at], b"abcd"[at:])[row])

    assert split(1) != split(2)


def test_storage_and_size_do_not_count_but_every_file(image_folder: Path) -> None:
    source = f"imagefolder:{image_folder}"
    base = open_dataset(source)
    for other in (open_dataset(source, memory_budget_bytes=0), open_dataset(source, image_size=8)):
        assert other.fingerprint == base.fingerprint
        assert other.full_fingerprint == base.full_fingerprint
    # One changed or removed file counts.
    path, found = image_folder / "cat" / "0.png", {base.fingerprint}
    path.write_bytes((image_folder / "cat" / "1.png").read_bytes())
    found.add(open_dataset(source).fingerprint)
    path.unlink()
    found.add(open_dataset(source).fingerprint)
    assert len(found) == 3
