import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from lipt.common.errors import DataError
from lipt.data.loading import open_data, open_dataset
from lipt.data.sources.rows import fingerprint, sampled_rows

LABELS_N = torch.arange(300) % 3


def raw(row: int) -> bytes:
    return bytes([row % 256]) * 3


def test_fingerprint_is_a_digest_of_the_documented_bytes() -> None:
    labels_N, rows = torch.tensor([2, 0]), (b"first", b"2nd")
    head = struct.pack("<QQqq", 2, 3, 2, 0)
    content = b"lipt-dataset-1" + head
    content += struct.pack("<QQ", 0, 5) + b"first" + struct.pack("<QQ", 1, 3) + b"2nd"
    assert fingerprint(labels_N, 3, rows.__getitem__) == hashlib.sha256(content).hexdigest()


@given(row=st.integers(0, 299), label=st.integers(0, 2))
def test_fingerprint_depends_on_every_label_and_sampled_row(row: int, label: int) -> None:
    def other(asked: int) -> bytes:
        return b"changed" if asked == row else raw(asked)

    sampled = fingerprint(LABELS_N, 3, raw)
    assert (fingerprint(LABELS_N, 3, other) != sampled) == (row in sampled_rows(300))
    changed_N = LABELS_N.clone()
    changed_N[row] = label
    assert (fingerprint(changed_N, 3, raw) == sampled) == (label == row % 3)


def test_fingerprint_samples_64_rows_and_separates_them() -> None:
    assert sampled_rows(3) == [0, 1, 2]
    assert sampled_rows(64) == list(range(64))
    assert sampled_rows(127) == list(range(0, 127, 2))
    assert len(set(sampled_rows(65))) == 64
    assert sampled_rows(50_000)[:2] == [0, 793]
    assert sampled_rows(50_000)[-1] == 49_999

    def split(at: int) -> str:
        return fingerprint(torch.tensor([0, 1]), 2, lambda row: (b"abcd"[:at], b"abcd"[at:])[row])

    assert split(1) != split(2)


def test_image_fingerprints_depend_on_files_but_not_on_storage_or_size(image_folder: Path) -> None:
    source = f"imagefolder:{image_folder}"
    base = open_dataset(source)
    for other in (open_dataset(source, memory_budget_bytes=0), open_dataset(source, image_size=8)):
        assert other.fingerprint == base.fingerprint
    # One changed or removed file counts.
    path, found = image_folder / "cat" / "0.png", {base.fingerprint}
    path.write_bytes((image_folder / "cat" / "1.png").read_bytes())
    found.add(open_dataset(source).fingerprint)
    path.unlink()
    found.add(open_dataset(source).fingerprint)
    assert len(found) == 3


def test_a_pipe_among_the_images_is_refused_by_name(image_folder: Path) -> None:
    os.mkfifo(image_folder / "cat" / "pipe.png")
    with pytest.raises(DataError, match=r"1 of 6 images .*\n.*pipe\.png is no regular file"):
        open_dataset(f"imagefolder:{image_folder}")


@pytest.mark.parametrize("labels", [("a", "\ud800"), (["a"], ["a", "\ud800"])], ids=["one", "some"])
def test_names_that_are_not_utf8_are_escaped_in_rows(labels: tuple[Any, Any]) -> None:
    opened = open_data([(torch.ones(2) * row, labels[row % 2]) for row in range(6)])
    names = opened.class_names if opened.rows.targets is None else opened.rows.targets.names
    assert names == ("a", "\\ud800")


def test_a_class_has_a_name_and_no_text() -> None:
    data = [(torch.ones(2) * row, ("a", "b" * 1001)[row % 2]) for row in range(6)]
    with pytest.raises(DataError, match=r"the name 'b{59} has 1001 characters; at most 1000 are"):
        open_data(data)
