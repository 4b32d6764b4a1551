"""Copies of a data set: which examples are there more than once, looked for once, kept on disk.

Pictures may be nearly the same; of other examples only equal ones are copies.
"""

from __future__ import annotations

import hashlib

from lipt.common.data import Dataset
from lipt.common.data.parallel import Progress, map_rows
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.inputs.specs import ImageSpec
from lipt.core.diagnosis.copies import Copies, find_copies, likeness_of_pictures
from lipt.core.diagnosis.pictures import are_pictures, look_at
from lipt.core.workspace import Workspace


def copies_of(workspace: Workspace, cpu_threads: int) -> Copies:
    """Which example each one is a copy of, the same for all who ask.

    Args:
        workspace: has the data.
        cpu_threads: that sums are taken in, which their last bits depend on.
    """
    dataset = workspace.dataset

    def compute() -> Copies:
        looking = workspace.progress("looking at all examples")
        if not isinstance(dataset.inputs, ImageSpec):
            return find_copies(_digests(dataset, looking), None)
        pictures = look_at(dataset.images, len(dataset), on_progress=looking)
        compare = are_pictures(dataset.inputs)
        return find_copies(
            pictures.digests,
            likeness_of_pictures(pictures, dataset.images) if compare else None,
            on_progress=workspace.progress("looking for near copies"),
        )

    depends_on = (dataset.fingerprint, dataset.inputs, cpu_threads)
    with pinned_kernels(cpu_threads):
        return workspace.cached("pictures", depends_on, load=Copies.load, compute=compute)


def _digests(dataset: Dataset, on_progress: Progress) -> list[bytes]:
    def digest(row: int) -> bytes:
        return hashlib.sha256(dataset.raw_bytes(row)).digest()

    return list(map_rows(digest, range(len(dataset)), num_threads=1, progress=on_progress))
