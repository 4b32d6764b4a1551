"""Copies of a data set: which pictures are there more than once, looked for once, kept on disk."""

from __future__ import annotations

from lipt.common.determinism.kernels import pinned_kernels
from lipt.coordinator.compute.context import Context
from lipt.coordinator.diagnosis.copies import Copies, find_copies, likeness_of_pictures
from lipt.coordinator.diagnosis.pictures import are_pictures, look_at


def copies_of(context: Context, cpu_threads: int) -> Copies:
    """Which picture each example is of, the same for all who ask.

    Args:
        context: has the data.
        cpu_threads: that sums are taken in, which their last bits depend on.
    """
    dataset = context.dataset

    def compute() -> Copies:
        pictures = look_at(
            dataset.images, len(dataset), on_progress=context.progress("looking at all images")
        )
        compare = are_pictures(dataset.image_shape)
        return find_copies(
            pictures.digests,
            likeness_of_pictures(pictures, dataset.images) if compare else None,
            on_progress=context.progress("looking for near copies"),
        )

    depends_on = (dataset.fingerprint, dataset.image_shape, cpu_threads)
    with pinned_kernels(cpu_threads):
        return context.cached("pictures", depends_on, load=Copies.load, compute=compute)
