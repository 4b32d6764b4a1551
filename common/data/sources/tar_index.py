"""Index of tar shards: where every image lies and what its label is, from one pass over headers.

Shapes: N samples, S shards, C classes that have names.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.packed import PackedNames
from lipt.common.data.sources.storage import Storage, read_exactly
from lipt.common.data.sources.tar_members import members_of
from lipt.common.data.sources.tar_samples import Convention, Sample, samples_of
from lipt.common.errors import DataError

# What the tensors mean; raised whenever shards would be read otherwise.
FORMAT = 1

_REPORT_SECONDS = 0.2
_REPORT_SAMPLES = 100


@dataclass(frozen=True)
class TarIndex:
    """Samples by row number, shards in order and samples as they stand in them.

    Attributes:
        offsets_N: int64, where each image begins in its shard.
        sizes_N: int64, bytes.
        labels_N: int64.
        ends_S: int64, the number of samples in a shard and those before it.
        members: the names of the image members.
        classes: the names of the labels, sorted; none where labels are numbers.
    """

    offsets_N: Tensor
    sizes_N: Tensor
    labels_N: Tensor
    ends_S: Tensor
    members: PackedNames
    classes: PackedNames

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """What `tensors` has made."""
        return cls(
            tensors["offsets"],
            tensors["sizes"],
            tensors["labels"],
            tensors["ends"],
            PackedNames(tensors["members"], tensors["member_ends"]),
            PackedNames(tensors["classes"], tensors["class_ends"]),
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All of it, to be kept."""
        return {
            "offsets": self.offsets_N,
            "sizes": self.sizes_N,
            "labels": self.labels_N,
            "ends": self.ends_S,
            "members": self.members.letters,
            "member_ends": self.members.ends_N,
            "classes": self.classes.letters,
            "class_ends": self.classes.ends_N,
        }

    def shard(self, row: int) -> int:
        """The number of the shard that a row is in."""
        return _shard(self.ends_S, row)


@dataclass
class _Walked:
    """How far all the shards have been gone through together."""

    total_bytes: int
    num_bytes: int = 0
    num_samples: int = 0
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int, num_samples: int) -> None:
        with self.lock:
            self.num_bytes += num_bytes
            self.num_samples += num_samples

    def report(self, progress: Progress) -> None:
        """Samples so far, of as many as there will be where the others are as large."""
        if self.num_samples and self.num_bytes:
            expected = round(self.num_samples * self.total_bytes / self.num_bytes)
            progress(self.num_samples, max(self.num_samples, expected))


def build_index(
    storage: Storage, shards: Sequence[str], convention: Convention, progress: Progress | None
) -> TarIndex:
    """Go through the headers of all shards, and read the members that labels are in.

    Args:
        storage: where the shards lie.
        shards: their names, in order.
        convention: what members are called.
        progress: called with (done, total) samples, of which the total is estimated.

    Raises:
        DataError: a shard or a sample in it cannot be used; names them.
    """
    sizes = [_size(storage, shard) for shard in shards]
    walked = _Walked(sum(sizes))
    with ThreadPoolExecutor(storage.threads, thread_name_prefix="index") as executor:
        futures = [
            executor.submit(_samples, storage, shard, size, convention, walked)
            for shard, size in zip(shards, sizes, strict=True)
        ]
        try:
            while True:
                done, pending = wait(futures, _REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                if progress is not None:
                    walked.report(progress)
                if not pending or any(future.exception() for future in done):
                    break
            # The first in the shards' order: those before it are waited for.
            found = [future.result() for future in futures]
        finally:
            walked.stopped = True
            executor.shutdown(wait=True, cancel_futures=True)
    return _joined(shards, found)


def _size(storage: Storage, shard: str) -> int:
    try:
        return storage.size(shard)
    except OSError as error:
        raise DataError(f"{shard} cannot be read: {error}. Name shards that are there.") from error


def _samples(
    storage: Storage, shard: str, size: int, convention: Convention, walked: _Walked
) -> list[Sample]:
    members = members_of(shard, lambda offset, some: storage.read(shard, offset, some), size)
    found: list[Sample] = []
    counted_bytes = counted = 0
    samples = samples_of(
        shard,
        members,
        convention,
        lambda member: read_exactly(storage, shard, member.offset, member.size),
    )
    for sample in samples:
        found.append(sample)
        if len(found) % _REPORT_SAMPLES == 0:
            reached = sample.image.offset
            walked.add(reached - counted_bytes, len(found) - counted)
            counted_bytes, counted = reached, len(found)
            if walked.stopped:
                return found
    walked.add(size - counted_bytes, len(found) - counted)
    return found


def _joined(shards: Sequence[str], found: Sequence[list[Sample]]) -> TarIndex:
    samples = [sample for of_shard in found for sample in of_shard]
    ends_S = torch.tensor([len(of_shard) for of_shard in found], dtype=torch.int64).cumsum(0)
    kinds = {type(sample.label): row for row, sample in enumerate(samples)}
    if len(kinds) > 1:
        one, other = (
            f"{samples[row].image.name!r:.200} in {shards[_shard(ends_S, row)]}"
            for row in (kinds[str], kinds[int])
        )
        raise DataError(
            f"the label of {one} is a class's name, and that of {other} a number. Write labels "
            "of one kind."
        )
    classes = sorted({str(sample.label) for sample in samples}) if str in kinds else []
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers[s.label] if isinstance(s.label, str) else s.label for s in samples]
    return TarIndex(
        offsets_N=torch.tensor([sample.image.offset for sample in samples], dtype=torch.int64),
        sizes_N=torch.tensor([sample.image.size for sample in samples], dtype=torch.int64),
        labels_N=torch.tensor(labels, dtype=torch.int64),
        ends_S=ends_S,
        members=PackedNames.of(sample.image.name for sample in samples),
        classes=PackedNames.of(classes),
    )


def _shard(ends_S: Tensor, row: int) -> int:
    return int(np.searchsorted(ends_S.numpy(), row, side="right"))
