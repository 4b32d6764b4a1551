from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import InvalidRequestError

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_is_the_digest_and_the_size_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"abc")
    name = BlobName("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3)
    assert BlobName.of(b"abc") == BlobName.of_file(path) == name
    assert BlobName.of(b"") == BlobName(EMPTY, 0)
    assert str(name) == "ba7816bf8f01 (3 bytes)"


@given(st.text())
def test_no_text_but_a_digest_becomes_a_name(text: str) -> None:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert BlobName(digest, 0).sha256 == digest
    if not re.fullmatch("[0-9a-f]{64}", text):
        with pytest.raises(InvalidRequestError):
            BlobName(text, 0)


@pytest.mark.parametrize("size_bytes", [-1, 2**63])
def test_refuses_an_impossible_size(size_bytes: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"cannot have {size_bytes} bytes"):
        BlobName(EMPTY, size_bytes)
