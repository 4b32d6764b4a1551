from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.blobs.blob import MAX_CHUNK_BYTES, BlobName, chunk_data, fill_chunk
from lipt.common.errors import BlobTooLargeError, CorruptBlobError, WrongOffsetError
from lipt.v1 import blob_pb2

BLOB = BlobName.of(b"0123456789")


def chunk(offset_bytes: int, data: bytes) -> blob_pb2.Chunk:
    message = blob_pb2.Chunk()
    fill_chunk(message, offset_bytes, data)
    return message


def test_the_checksum_is_that_of_zlib() -> None:
    # The check value of CRC-32/ISO-HDLC.
    assert chunk(4, b"123456789") == blob_pb2.Chunk(
        offset_bytes=4, data=b"123456789", crc32=0xCBF43926
    )


@given(st.binary(min_size=1, max_size=10), st.data())
def test_any_flipped_bit_is_noticed(data: bytes, draw: st.DataObject) -> None:
    message = chunk(0, data)
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    message.data = bytes(damaged)
    with pytest.raises(CorruptBlobError, match=r"differs from its CRC-32.*Send it again"):
        chunk_data(message, blob=BLOB, offset_bytes=0)


def test_refuses_a_chunk_that_starts_elsewhere() -> None:
    with pytest.raises(WrongOffsetError, match="starts at 5, but 4 bytes are kept"):
        chunk_data(chunk(5, b"5"), blob=BLOB, offset_bytes=4)


def test_refuses_a_chunk_that_goes_on_after_the_end() -> None:
    with pytest.raises(WrongOffsetError, match="ends at 11, after the blob's end"):
        chunk_data(chunk(9, b"9a"), blob=BLOB, offset_bytes=9)


def test_refuses_a_chunk_over_the_limit() -> None:
    with pytest.raises(BlobTooLargeError, match=f"{MAX_CHUNK_BYTES + 1} bytes; at most"):
        chunk_data(chunk(0, bytes(MAX_CHUNK_BYTES + 1)), blob=BLOB, offset_bytes=0)
