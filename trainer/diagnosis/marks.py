"""Marks: a person's answers on suspected labels, and the data set that they leave.

`diagnosis.html` saves them as JSON. `label` is the number of the class that is right:

    {"version": 1, "fingerprint": "...", "marks": [{"row": 6, "answer": "right"},
      {"row": 9, "answer": "wrong"}, {"row": 12, "answer": "other", "label": 3}]}

Shapes: N examples of the data, K that stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.utils import data as torch_data

from lipt.common.errors import ConfigError, MarksError
from lipt.core.diagnosis.findings import Count
from lipt.data.dataset import Dataset
from lipt.data.loading import open_data
from lipt.data.sources.map_style import describe
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.subsets.data import MapStyle, has_fingerprint, row_numbers, rows_of


class Mark(BaseModel):
    """One answer: the label is right, it is wrong, or the class `label` is right instead."""

    model_config = ConfigDict(frozen=True)

    row: Count
    answer: Literal["right", "wrong", "other"]
    label: Count | None = None


class Marks(BaseModel):
    """The answers on labels of the data with this fingerprint, one per row."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1]
    fingerprint: str
    marks: tuple[Mark, ...]

    @classmethod
    def read(cls, path: str | Path, dataset: Dataset) -> Marks:
        """Read a file of answers on this data; MarksError for another format or answer."""
        try:
            read = cls.model_validate_json(Path(path).read_bytes(), strict=True)
        except OSError as error:
            raise MarksError(f"{path} cannot be read: {error}. Give a file of marks.") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the text"
            raise MarksError(
                f"{path} holds no marks: {where} cannot be used ({first['msg']}). Save them again "
                "in diagnosis.html."
            ) from None
        times = Counter(mark.row for mark in read.marks)
        num_classes = len(dataset.class_names)
        for mark in read.marks:
            problem = ""
            if mark.row >= dataset.num_ids:
                problem = f"the data has {dataset.num_ids} rows"
            elif times[mark.row] > 1:
                problem = "it is marked more than once"
            elif (mark.answer == "other") != (mark.label is not None):
                problem = "the answer `other`, and no other, has a label"
            elif mark.label is not None and mark.label >= num_classes:
                problem = f"class {mark.label} is none of {num_classes} classes"
            if problem:
                raise MarksError(
                    f"{path} has an impossible mark of row {mark.row}: {problem}. Save the marks "
                    "again in diagnosis.html."
                )
        return read


class Cleaned(torch_data.Dataset[Any]):
    """A map-style data set of the examples that stay, with corrected labels.

    Attributes:
        indices: int64 K, row numbers in the data, ascending.
        labels: int64 K, class numbers after correction.
        classes: names of the classes, if the data has any.
    """

    def __init__(
        self, rows: MapStyle[Any], indices: NDArray[np.int64], given_N: Any, new: Mapping[int, int]
    ) -> None:
        self._rows, self._indices, self._new = rows, row_numbers(indices), dict(new)
        self.indices = indices
        labels_N = np.array(given_N, dtype=np.int64)
        # A label as the data's own rows return it.
        self._label_of = {
            label: _label(rows[int(np.flatnonzero(labels_N == label)[0])])
            for label in sorted(set(self._new.values()))
        }
        labels_N[list(self._new)] = list(self._new.values())
        self.labels = labels_N[indices]
        self.classes = getattr(rows, "class_names", None) or describe(rows).classes

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Any:
        number = self._indices[place]
        row = self._rows[number]
        if number not in self._new:
            return row
        label = self._label_of[self._new[number]]
        if isinstance(row, Mapping):
            return {**row, _key(row): label}
        return (row[0], label, *row[2:])


def _key(row: Mapping[str, Any]) -> str:
    return "label" if "label" in row else "labels"


def _label(row: Any) -> Any:
    return row[_key(row)] if isinstance(row, Mapping) else row[1]


def clean(
    data: Any, diagnosis: Diagnosis | None, marks: str | Path | None, target: str | None
) -> Cleaned:
    """See `lipt.clean`."""
    if diagnosis is None and marks is None:
        raise ConfigError(
            "neither a diagnosis nor marks were given. Give lipt.diagnose(data), or marks= with "
            "the file that diagnosis.html saves."
        )
    dataset = open_data(data, target=target)
    if dataset.target.kind is not TargetKind.CLASS:
        raise ConfigError(
            f"the data is {dataset.target.kind.words} data, and marks are of classes. Give data "
            "with one class per example."
        )
    rows = dataset if isinstance(data, str | Path) else rows_of(data, target)
    if rows is dataset and dataset.encoded:
        rows = _Decoded(dataset)
    given_N = dataset.rows.labels_N.numpy()
    stays_N, new = np.ones(len(given_N), dtype=bool), dict[int, int]()
    if diagnosis is not None:
        _require_same_data("the diagnosis", diagnosis.fingerprint, rows, dataset, target)
        stays_N[:] = False
        stays_N[diagnosis.clean()] = True
    if marks is not None:
        answers = Marks.read(marks, dataset)
        _require_same_data(str(marks), answers.fingerprint, rows, dataset, target)
        for mark in answers.marks:
            stays_N[mark.row] = mark.answer != "wrong"
            if mark.label is not None:
                new[mark.row] = mark.label
    empty = sorted(set(new.values()) - set(given_N.tolist()))
    if empty:
        raise MarksError(
            f"{marks} relabels as {dataset.class_names[empty[0]]}, a class without any example. "
            "Add an example of it to the data first."
        )
    return Cleaned(rows, np.flatnonzero(stays_N), given_N, new)


class _Decoded:
    """The rows of a data set of image files, as pixels of the model's size."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self.class_names = dataset, dataset.class_names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        image_CHW = self._dataset.images(torch.tensor([row]))[0]
        return {"image": image_CHW, "label": self._dataset.labels_N[row]}


def _require_same_data(
    what: str, fingerprint: str, rows: Any, dataset: Dataset, target: str | None
) -> None:
    """MarksError for other data; image files of a map-style data set may be the diagnosed ones."""
    if fingerprint != dataset.fingerprint and not has_fingerprint(rows, fingerprint, target)[0]:
        raise MarksError(
            f"{what} belongs to data with fingerprint {fingerprint:.12}, and {dataset.source} has "
            f"{dataset.fingerprint:.12}. Give the diagnosed data."
        )
