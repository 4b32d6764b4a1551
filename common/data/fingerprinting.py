"""Fingerprint: a data set's digest, which travels with every subset.

It is compared before indices are applied to data. A sampled fingerprint is the lower-case
hexadecimal SHA-256 of these bytes:

    b"lipt-dataset-1"
    N and C                       number of rows and of classes, uint64 little-endian each
    the N labels, in row order    int64 little-endian each; where examples have no single class
                                  their strata, then b"labels" or b"numbers", their number T as
                                  uint64 little-endian, and N x T uint8 or float32 little-endian
    for each sampled row r        r and its raw bytes' length, uint64 little-endian each,
                                  then the raw bytes

A full one is "full-" and the digest of these:

    b"lipt-dataset-full-1"
    N, C and the labels           as above
    for each row                  the 32 bytes of its raw bytes' SHA-256

Raw bytes are the image file or, without files, uint8 pixels in C x H x W order at their own size.
Decoder, image size and class names do not matter. All rows are sampled for N <= 64, else floor(i
(N-1) / 63) for i = 0..63. A sampled fingerprint misses changes of other rows; a full one reads all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from torch import Tensor

from lipt.common.config.run_config import FULL_PREFIX, FingerprintKind
from lipt.common.data.parallel import Progress, map_rows
from lipt.common.targets.kinds import TargetKind
from lipt.common.targets.values import TargetValues

_NUM_SAMPLED_ROWS = 64


def fingerprint(
    labels_N: Tensor,
    num_classes: int,
    raw: Callable[[int], bytes],
    kind: FingerprintKind = FingerprintKind.SAMPLED,
    *,
    targets: TargetValues | None = None,
    num_threads: int = 1,
    progress: Progress | None = None,
) -> str:
    """A data set's digest, as defined above."""
    num_rows = len(labels_N)
    full = kind is FingerprintKind.FULL
    digest = hashlib.sha256(b"lipt-dataset-full-1" if full else b"lipt-dataset-1")
    digest.update(struct.pack("<QQ", num_rows, num_classes))
    digest.update(labels_N.numpy().astype("<i8").tobytes())
    if targets is not None:
        labels = targets.target.kind is TargetKind.CLASSES
        digest.update(b"labels" if labels else b"numbers")
        digest.update(struct.pack("<Q", targets.values.shape[1]))
        digest.update(targets.values.numpy().astype("|u1" if labels else "<f4").tobytes())
    if full:

        def digest_of(row: int) -> bytes:
            return hashlib.sha256(raw(row)).digest()

        rows = range(num_rows)
        for part in map_rows(digest_of, rows, num_threads=num_threads, progress=progress):
            digest.update(part)
        return FULL_PREFIX + digest.hexdigest()
    for row in sampled_rows(num_rows):
        data = raw(row)
        digest.update(struct.pack("<QQ", row, len(data)))
        digest.update(data)
    return digest.hexdigest()


def sampled_rows(num_rows: int) -> list[int]:
    """64 evenly spaced rows from the first to the last."""
    if num_rows <= _NUM_SAMPLED_ROWS:
        return list(range(num_rows))
    last = _NUM_SAMPLED_ROWS - 1
    return [i * (num_rows - 1) // last for i in range(_NUM_SAMPLED_ROWS)]
