"""Decoding all: every image of a source decoded once, and what cannot be used listed.

To open a large set is to read its images' headers and ends, which a file passes that is broken in
its middle: it fails in the midst of a run. Who wants to know before decodes everything. What a
decoder makes up for, as of a JPEG that is damaged in its middle, is not found.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lipt.common.data.dataset import Dataset
from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.registry import open_rows
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.errors import DataError

# What most models see. Whether a file can be decoded does not depend on it.
_SIZE = (224, 224)


@dataclass(frozen=True)
class UnusableImage:
    """An image that no model can be given.

    Attributes:
        id: its row number in the set as it is, whatever else is broken.
        place: where a person finds its file.
        problem: what is wrong with it.
    """

    id: int
    place: str
    problem: str


@dataclass(frozen=True)
class Decoded:
    """What came of decoding all images of a source, those that failed by ascending id."""

    source: str
    num_images: int
    unusable: tuple[UnusableImage, ...]


def decode_all(
    source: str, *, allowed_modules: Collection[str] = (), progress: Progress | None = None
) -> Decoded:
    """Decode every image of a source, whether it can be opened as a data set or not.

    Args:
        source: as in `open_dataset`.
        allowed_modules: likewise.
        progress: called with (done, total) images.

    Raises:
        LiptError: the source cannot be opened at all, or what it holds are no image files.
    """
    found = open_rows(source, allowed_modules, progress)
    rows = found.rows if isinstance(found, Dataset) else found
    if not isinstance(rows, EncodedRows):
        raise DataError(
            f"{source} holds no image files, and what else it holds is checked in full whenever "
            "it is opened. Give image files: imagefolder:PATH, webdataset:PATH or parquet:PATH."
        )

    def problem_of(row: int) -> UnusableImage | None:
        try:
            rows.read(row, 3, _SIZE)
        except DataError as error:
            return UnusableImage(row, rows.where(row), str(error.__cause__ or error))
        return None

    height, width = _SIZE
    num_threads = threads_for(height * width) if rows.concurrent else 1
    problems = map_rows(problem_of, range(len(rows)), num_threads=num_threads, progress=progress)
    return Decoded(source, len(rows), tuple(found for found in problems if found is not None))
