"""Image check: reads every image of a source once, and lists all that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.text import encodable
from lipt.data.images.formats import Header
from lipt.data.parallel import Progress, map_rows
from lipt.data.sources.rows import EncodedRows, ImageRows

# Images of different sizes are scaled to ImageNet's usual size.
DEFAULT_SIZE = 224
# Broken images named in a message.
MOST_NAMED = 20


@dataclass(frozen=True)
class UnusableImage:
    """An image that cannot be decoded."""

    id: int
    place: str
    problem: str

    def __str__(self) -> str:
        return f"image {self.id} ({self.place}): {self.problem}"


def first_header(rows: ImageRows, quarantined: Collection[int]) -> Header:
    for row in range(len(rows)):
        # Broken ones are named later, all together.
        with suppress(DataError):
            if row not in quarantined:
                return rows.check(row)
    return Header(DEFAULT_SIZE, DEFAULT_SIZE, grayscale=False)


def visit_images(
    rows: ImageRows,
    visit: Callable[[int], Header],
    ids: Sequence[int],
    num_threads: int,
    progress: Progress | None,
) -> tuple[set[Header], list[UnusableImage]]:
    """Visit images: their different formats, and those that are broken."""

    def attempt(row: int) -> Header | UnusableImage:
        try:
            return visit(row)
        except DataError as error:
            if isinstance(rows, EncodedRows):
                return UnusableImage(row, encodable(rows.where(row)), str(error.__cause__ or error))
            raise  # by the user's own function

    headers, broken = set[Header](), list[UnusableImage]()
    for found in map_rows(attempt, ids, num_threads=num_threads, progress=progress):
        if isinstance(found, UnusableImage):
            broken.append(found)
        else:
            headers.add(found)
    return headers, broken


def look_at(
    rows: ImageRows,
    visit: Callable[[int], Header],
    num_threads: int,
    progress: Progress | None,
    max_corrupt: int,
    quarantined: Collection[int],
) -> dict[str, Tensor]:
    """Check all images: smallest and largest `sizes`, whether all are `gray`, the `quarantined`.

    Raises a DataError with all broken images and empty classes in a list.
    """
    ids = sorted(set(range(len(rows))) - set(quarantined))
    headers, broken = visit_images(rows, visit, ids, num_threads, progress)
    empty = empty_folders(rows)
    if empty or len(broken) > max_corrupt:
        allowed = f", and at most {max_corrupt} may be left out" if max_corrupt else ""
        source, problems = rows.source, list[str]()
        if broken:
            problems.append(f"{len(broken)} of {len(rows)} images of {source} cannot be used")
        if empty:
            problems.append(
                f"{len(empty)} of {len(rows.class_names)} classes of {source} are empty"
            )
        lines = [*(f"no image in {folder}" for folder in empty), *map(str, broken)]
        more = len(lines) - MOST_NAMED
        if more > 0:
            lines[MOST_NAMED:] = [f"and {more} more: lipt check --data lists all"]
        raise DataError(
            f"{' and '.join(problems)}{allowed}. Replace them, or remove them and open the data "
            "again:\n" + "\n".join(lines)
        )
    if not headers:
        raise DataError(f"{rows.source} holds no images. Open data with at least one per class.")
    sizes_X2 = torch.tensor([[header.height, header.width] for header in headers])
    return {
        "sizes": torch.stack([sizes_X2.amin(dim=0), sizes_X2.amax(dim=0)]),
        "gray": torch.tensor([all(header.grayscale for header in headers)]),
        "quarantined": torch.tensor(
            sorted({*quarantined, *(image.id for image in broken)}), dtype=torch.int64
        ),
    }


def empty_folders(rows: ImageRows) -> tuple[str, ...]:
    return rows.empty_folders if isinstance(rows, EncodedRows) else ()
