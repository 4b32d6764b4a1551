import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.blobs.blob import MAX_CHUNK_BYTES, BlobName, chunk_data, fill_chunk
from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    InvalidRequestError,
    LiptError,
    WrongOffsetError,
)
from lipt.v1 import blob_pb2

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_blob_name_has_the_digest_and_the_size_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"abc")
    name = BlobName("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3)
    assert BlobName.of(b"abc") == BlobName.of_file(path) == name
    assert BlobName.of(b"") == BlobName(EMPTY, 0)
    assert str(name) == "ba7816bf8f01 (3 bytes)"


@given(st.text())
def test_only_a_digest_is_a_valid_blob_name(text: str) -> None:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert BlobName(digest, 0).sha256 == digest
    if not re.fullmatch("[0-9a-f]{64}", text):
        with pytest.raises(InvalidRequestError):
            BlobName(text, 0)
    for size_bytes in (-1, 2**63):
        with pytest.raises(InvalidRequestError, match=f"and {size_bytes} bytes"):
            BlobName(digest, size_bytes)


BLOB = BlobName.of(b"0123456789")


def chunk(offset_bytes: int, data: bytes) -> blob_pb2.Chunk:
    message = blob_pb2.Chunk()
    fill_chunk(message, offset_bytes, data)
    return message


def test_chunk_checksum_equals_zlib_s() -> None:
    # The check value of CRC-32/ISO-HDLC.
    assert chunk(4, b"123456789") == blob_pb2.Chunk(
        offset_bytes=4, data=b"123456789", crc32=0xCBF43926
    )


@given(st.binary(min_size=1, max_size=10), st.data())
def test_any_flipped_bit_is_detected(data: bytes, draw: st.DataObject) -> None:
    message = chunk(0, data)
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    message.data = bytes(damaged)
    with pytest.raises(CorruptBlobError, match=r"differs from its CRC-32.*Send it again"):
        chunk_data(message, blob=BLOB, offset_bytes=0)


@pytest.mark.parametrize(
    ("sent", "kept", "error", "words"),
    [
        (chunk(5, b"5"), 4, WrongOffsetError, "no chunk at 5 follows 4 bytes. Ask"),
        (chunk(9, b"9a"), 9, WrongOffsetError, "ends at 11, after the blob's end"),
        (chunk(0, bytes(MAX_CHUNK_BYTES + 1)), 0, BlobTooLargeError, "1048577 bytes; at most"),
    ],
    ids=["elsewhere", "after the end", "too large"],
)
def test_chunks_at_a_wrong_offset_are_refused(
    sent: blob_pb2.Chunk, kept: int, error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        chunk_data(sent, blob=BLOB, offset_bytes=kept)
