"""Row numbers beside the examples, for losses that have to be told by example."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from lipt.trainer.subsets.data import ExampleT_co, MapStyle


class WithIds(Dataset[tuple[int, Any]]):
    """A map-style data set whose examples come as (row number, example).

    Args:
        dataset: any data set with a length, whose rows are looked up by number.
    """

    def __init__(self, dataset: MapStyle[ExampleT_co]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        return row, self._dataset[row]


def with_ids(dataset: MapStyle[ExampleT_co]) -> WithIds:
    """The same data set, with each example's row number: `for ids, (images, labels) in loader`."""
    return WithIds(dataset)
