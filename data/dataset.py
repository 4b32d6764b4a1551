"""Data set: a map from a row number, which is the example's id, to a labelled example.

Its input format is the shape and the normalization of a run's inputs; it travels with every task.

Images stay in memory as pixels if they fit, and are otherwise read and decoded on demand. Where
broken images are excluded, computations use positions among the rest; callers still use ids.

Shapes: N examples, B positions, C x H x W pixels as the model sees them, P positions of a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.text import listed
from lipt.data.groups import members
from lipt.data.inputs.model_input import Stored, images_in
from lipt.data.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ImageFormat,
    ImageSpec,
    InputFormat,
    InputSpec,
    num_places,
)
from lipt.data.inputs.standardization import (
    ROWS_AT_ONCE,
    Values,
    mean_and_deviation,
    sample_size,
)
from lipt.data.sources.rows import Rows
from lipt.data.sources.storage import Stamp
from lipt.data.targets.values import SingleLabel, Target

_MAX_IMAGES = 2000
_IMAGES_AT_ONCE = 100


# Columns and classes in a description.
_MOST_LINES, _MOST_NAMED = 256, 5


@dataclass(frozen=True, repr=False)
class Dataset:
    """Labelled examples, the same ones in the same order every time they are opened.

    Attributes:
        rows: all examples of the source, by id.
        fingerprint: see `lipt.data.sources.rows`.
        stamp: of the source's files; None without files.
        again: opens the source's rows, where `rows` are scaled ones in memory; else None.
        note: clause on scaled images, missing numbers or unused columns; empty without any.
        quarantined: ids of images that cannot be used, ascending.
        excludes: whether these are left out.
    """

    rows: Rows
    fingerprint: str
    inputs: InputSpec
    num_threads: int = 1
    stamp: Stamp | None = None
    again: Callable[[], Rows] | None = None
    note: str = ""
    quarantined: tuple[int, ...] = ()
    excludes: bool = False

    @property
    def source(self) -> str:
        return self.rows.source

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.rows.class_names

    @cached_property
    def labels_N(self) -> Tensor:
        """The labels, int64, on the CPU; strata if examples have no single class."""
        return self.id_mapping.by_position(self.rows.labels_N)

    @property
    def target(self) -> Target:
        given = self.rows.targets
        return SingleLabel(len(self.class_names)) if given is None else given.target

    @cached_property
    def targets_N(self) -> Tensor:
        """Each example's target: labels, or N x T; on the CPU."""
        targets = self.rows.targets
        return self.labels_N if targets is None else self.id_mapping.by_position(targets.values)

    @cached_property
    def source_ids(self) -> dict[str, Tensor]:
        """Each source's positions, ascending; empty for data that names no sources."""
        sources = self.rows.sources
        if sources is None:
            return {}
        places_N = self.id_mapping.by_position(sources.places_N)
        return dict(zip(sources.names, members(places_N, len(sources.names)), strict=True))

    @property
    def encoded(self) -> bool:
        return self.rows.encoded

    @property
    def in_memory(self) -> bool:
        """Whether reading a stored example only indexes a tensor."""
        return self.rows.stores(self.inputs)

    @property
    def reading(self) -> list[str]:
        """How each column was read, a line each; of images one."""
        if self.rows.reading:
            lines, more = self.rows.reading[:_MOST_LINES], len(self.rows.reading) - _MOST_LINES
            return [*map(str, lines), *([f"and {more} more columns"] if more > 0 else [])]
        if isinstance(self.inputs, ImageSpec):
            return [str(self.inputs)]
        return [
            f"{column}, standardized" if column.standardized else str(column)
            for column in self.inputs.columns
        ]

    @property
    def facts(self) -> dict[str, Any]:
        """A manifest's part on the data, as JSON."""
        columns = () if isinstance(self.inputs, ImageSpec) else self.inputs.columns
        return {
            "source": self.source,
            "fingerprint": self.fingerprint,
            "num_examples": self.num_ids,
            "standardized": [str(column) for column in columns if column.standardized],
            "columns": self.reading,
            "note": self.note,
            "quarantined": list(self.quarantined),
        }

    def __repr__(self) -> str:
        named = listed([f"{name:.40}" for name in self.class_names], _MOST_NAMED)
        target = f"{self.target} ({named})" if self.rows.targets is None else str(self.target)
        note = f"; {self.note}" if self.note else ""
        return f"Dataset({self.source}: {len(self)} examples, {target}, {self.inputs}{note})"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.reading)
        return f"<p>{escape(repr(self))}</p><ul>{lines}</ul>"

    def __len__(self) -> int:
        return len(self.labels_N)

    @cached_property
    def id_mapping(self) -> IdMapping:
        return IdMapping(self.quarantined if self.excludes else ())

    @property
    def num_ids(self) -> int:
        """All examples of the source, excluded ones too; ids are below it."""
        return len(self.rows)

    @cached_property
    def source_rows(self) -> Rows:
        """The source's rows: not scaled, and files if images are encoded."""
        return self.rows if self.again is None else self.again()

    def has_changed(self) -> bool:
        """Whether the source has changed, by its stamp, or sampled rows of a user's images."""
        if self.stamp is not None:
            return not self.stamp.holds()
        if self.rows.held:
            return False
        try:
            return self.rows.fingerprint() != self.fingerprint
        except DataError:
            return True

    def __getitem__(self, row: int) -> dict[str, Tensor | bytes]:
        """One example: its tensors by name, and "label", int64.

        An image is "image", uint8 C x H x W or a file's bytes; a nameless tensor is "input".
        """
        label = {"label": self.labels_N[row]}
        if self.encoded:
            return {"image": self.raw_bytes(row), **label}
        stored = self.examples(torch.tensor([row]))
        if isinstance(stored, Tensor):
            return {"image": stored[0], **label}
        return {**{name or "input": tensor[0] for name, tensor in stored.items()}, **label}

    def examples(self, ids: Tensor) -> Stored:
        """Stored examples: uint8 images, B x C x H x W, or a tensor for each column.

        `ids` are B row numbers, int64, in any order, with repeats; positions if images are left
        out. Raises IndexError outside 0..N-1, and DataError for an unreadable image.
        """
        return self.rows.examples(self._rows_of(ids), self.inputs, self.num_threads)

    def images(self, ids: Tensor) -> Tensor:
        """Images at the model's size, uint8 B x C x H x W; as `examples`."""
        if not isinstance(self.inputs, ImageSpec):
            raise DataError(f"{self.source} holds no images, but {self.inputs}. Open an image set.")
        return images_in(self.examples(ids))

    def raw_bytes(self, row: int) -> bytes:
        """An image file, or the bytes of an example's pixels or values."""
        ids = torch.tensor([row])
        if self.encoded or not isinstance(self.inputs, ImageSpec):
            return self.rows.raw(int(self._rows_of(ids)))
        return self.images(ids).numpy().tobytes()

    def raw_values(self, ids: Tensor) -> NDArray[np.uint8]:
        """The bytes of the values of some examples that are not images; B x bytes."""
        return self.rows.raw_rows(self._rows_of(ids))

    def _rows_of(self, ids: Tensor) -> Tensor:
        for row in map(int, (ids.min(), ids.max()) if len(ids) else ()):
            if not 0 <= row < len(self):
                raise IndexError(f"there is no row {row} in {self.source} with {len(self)} rows")
        return self.id_mapping.ids(ids)


@dataclass(frozen=True)
class IdMapping:
    """Maps ids to positions, which skip the `excluded` ids, and back; these are ascending."""

    excluded: tuple[int, ...] = ()

    def ids(self, positions: Tensor) -> Tensor:
        if not self.excluded:
            return positions
        return positions + torch.searchsorted(self._before, positions.contiguous(), right=True)

    def positions(self, ids: Tensor) -> Tensor:
        return ids - torch.searchsorted(self._excluded, ids.contiguous())

    def by_id(self, values_N: Tensor, otherwise: Tensor | float) -> Tensor:
        """Values by id from values by position; excluded ids get `otherwise`, one or one each."""
        size = len(values_N) + len(self.excluded)
        by_id = values_N.new_empty((size, *values_N.shape[1:]))
        by_id[self.ids(torch.arange(len(values_N)))] = values_N
        by_id[self._excluded] = torch.as_tensor(otherwise, dtype=values_N.dtype)
        return by_id

    def by_position(self, values_N: Tensor) -> Tensor:
        """Values by position from values by id; the same tensor if none is excluded."""
        if not self.excluded:
            return values_N
        return values_N[self.ids(torch.arange(len(values_N) - len(self.excluded)))]

    @cached_property
    def _excluded(self) -> Tensor:
        return torch.tensor(self.excluded, dtype=torch.int64)

    @cached_property
    def _before(self) -> Tensor:
        """The number of positions before each excluded id."""
        return self._excluded - torch.arange(len(self.excluded))


def without_quarantined(dataset: Dataset) -> Dataset:
    """The usable images; keeps the whole set's fingerprint."""
    return replace(dataset, excludes=bool(dataset.quarantined))


def input_format(dataset: Dataset, ids: Tensor, seed: int) -> InputFormat:
    """The input format, with means and deviations over all ids, or over 2,000 sampled images."""
    inputs = dataset.inputs
    if isinstance(inputs, ImageSpec):
        return ImageFormat(*inputs.shape, *_image_figures(dataset, ids, seed))
    return ColumnsFormat(
        tuple(
            ColumnFormat(column, *_column_figures(dataset, ids, column, seed))
            if column.standardized
            else ColumnFormat(column)
            for column in inputs.columns
        )
    )


def _image_figures(
    dataset: Dataset, ids: Tensor, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel, of pixels scaled to [0, 1].

    Integer sums do not depend on order or threads. A constant channel gets deviation 1.
    """
    generator = torch.Generator().manual_seed(seed)
    sampled = ids[torch.randperm(len(ids), generator=generator)[:_MAX_IMAGES]].sort().values
    sums_2C, num_pixels = torch.zeros(2, 1, dtype=torch.int64), 0
    for part in torch.split(sampled, _IMAGES_AT_ONCE):
        pixels_BCHW = dataset.images(part).long()
        powers_2BCHW = torch.stack([pixels_BCHW, pixels_BCHW.square()])
        sums_2C = sums_2C + powers_2BCHW.sum(dim=(1, 3, 4))
        num_pixels += pixels_BCHW[:, 0].numel()
    means: list[float] = []
    deviations: list[float] = []
    for total, squares in sums_2C.T.tolist():
        means.append(total / num_pixels / 255)
        # n squares - total^2 is exact in integers, but not in floats.
        variance = (num_pixels * squares - total**2) / num_pixels**2
        deviations.append(variance**0.5 / 255 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def _column_figures(
    dataset: Dataset, ids: Tensor, column: Column, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and deviations by position, summed in one thread, as in `mean_and_deviation`."""
    places = num_places(column)
    blocks = torch.split(ids.sort().values, ROWS_AT_ONCE)

    def values_of(block: Tensor) -> Values:
        stored = dataset.examples(block)
        values = stored if isinstance(stored, Tensor) else stored[column.name]
        flat_XP: Values = values.to(torch.float64).reshape(-1, places).numpy()
        return flat_XP

    generator = torch.Generator().manual_seed(seed)
    size = sample_size(places)
    sampled = ids[torch.randperm(len(ids), generator=generator)[:size]].sort().values
    mean_P, std_P = mean_and_deviation(values_of(sampled), lambda: map(values_of, blocks))
    return tuple(mean_P.tolist()), tuple(std_P.tolist())
