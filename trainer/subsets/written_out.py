"""Written out: a subset's images in a folder of files, for whoever trains elsewhere.

The folder is there with all that belongs to it, or not at all. Equal subsets of equal data give
equal files, to the byte. `subset.json` in it says what they are and how they came about, and loads
as the subset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from lipt.common.data.parallel import Progress
from lipt.common.errors import SubsetError
from lipt.trainer.subsets.chosen_images import Chosen, ChosenImage, chosen_images
from lipt.trainer.subsets.same_data import require_same_data
from lipt.trainer.writing.files import making

if TYPE_CHECKING:
    from lipt.common.data import Dataset

_SUBSET = "subset.json"


class WriteShard(Protocol):
    """Writes one file of images."""

    def __call__(self, path: Path, images: Iterator[ChosenImage]) -> None:
        """Write all of them, in order."""
        ...


def write_out(
    subset: Chosen,
    dataset: Dataset,
    folder: Path,
    name: str,
    write: WriteShard,
    examples_per_shard: int,
    on_progress: Progress | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> list[Path]:
    """Write a subset's images as shards.

    Args:
        subset: whose examples.
        dataset: that it was chosen from.
        folder: to be made; may be there as long as it is empty.
        name: of a shard, in which {number} and {count} stand for its own number and for how many
            there are.
        write: what writes a shard.
        examples_per_shard: how many examples go into one, at most.
        on_progress: called with (examples done, examples in all).
        beside: what else is to lie beside the shards, by its name.

    Returns:
        The shards, in order.

    Raises:
        SubsetError: the subset is empty, is of other data, or shards are to hold none.
        DataError: an example can no longer be read, or is no image.
        FileExistsError: there is something in the folder.
        OSError: it cannot be written.
    """
    if examples_per_shard < 1:
        raise SubsetError(
            f"examples_per_shard = {examples_per_shard}: a shard holds at least one example."
        )
    if not len(subset.indices):
        raise SubsetError("the subset is empty, so there is nothing to write. Get another.")
    require_same_data(
        dataset,
        fingerprint=subset.fingerprint,
        indices_N=subset.indices,
        manifest=subset.manifest,
        check=True,
    )
    count = -(-len(subset.indices) // examples_per_shard)
    names = [name.format(number=number, count=count) for number in range(count)]
    with making(folder) as unfinished:
        images = chosen_images(subset, dataset, on_progress)
        for shard in names:
            # The first is asked for here, so that none begins that has nothing in it.
            own = islice(images, examples_per_shard)
            write(unfinished / shard, chain([next(own)], own))
        for file, content in beside.items():
            (unfinished / file).write_bytes(content)
        subset.save(unfinished / _SUBSET)
    return [folder / shard for shard in names]
