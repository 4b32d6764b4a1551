"""Diagnosis: findings about a data set and each of its examples, and its file.

The file is safetensors: one tensor of N values per column, and the findings as JSON in its metadata
under "diagnosis". It comes from another machine, so sizes are checked first, then names, types and
shapes, then values. Shapes: N examples.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from lipt.common.errors import BlobTooLargeError, DataError, DiagnosisError, WeightsError
from lipt.core.diagnosis.findings import COLUMNS, Findings, LabelIssue
from lipt.trainer.diagnosis.sentences import facts
from lipt.trainer.formatting import as_table, csv_cell


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """A data set's diagnosis; DiagnosisError unless columns and findings are consistent.

    Attributes:
        findings: results for the whole data set.
        given_label: int32 N, the labels of the data.
        suggested_label: int32 N, the best-fitting label.
        label_quality: float32 N, low where the given label does not fit.
        suspect: uint8 N, 1 where the given label is probably wrong.
        duplicate_of: int32 N, id of the example kept from a group of duplicates, else its own id.
        outlier_score: float32 N, distance to the nearest examples; 1 for the median example.
        fingerprint: fingerprint of the data set.
        run_id: run whose learners were used; empty without one.
        manifest: data source, versions and settings.
    """

    findings: Findings
    given_label: NDArray[np.int32]
    suggested_label: NDArray[np.int32]
    label_quality: NDArray[np.float32]
    suspect: NDArray[np.uint8]
    duplicate_of: NDArray[np.int32]
    outlier_score: NDArray[np.float32]
    fingerprint: str
    run_id: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in COLUMNS.items():
            column = np.array(getattr(self, name))
            if column.dtype != dtype or column.shape != (len(self),):
                raise _refused(f"{name} is {column.dtype} {column.shape} for {len(self)} rows")
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        _require_columns(self)

    def __len__(self) -> int:
        return self.findings.num_examples

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of every label."""
        return self.findings.class_names

    @property
    def source(self) -> str:
        """Name of the data set; empty if unknown."""
        data = self.manifest.get("data")
        return str(data.get("source", "")) if isinstance(data, dict) else ""

    def label_issues(self, *, sure: bool = False) -> tuple[LabelIssue, ...]:
        """Return the suspected wrong labels, worst first; `sure` keeps the surest."""
        rows_S = self._suspects(sure=sure)
        columns = (self.given_label, self.suggested_label, self.label_quality)
        return tuple(
            LabelIssue(id=row, given=given, suggested=suggested, quality=quality)
            for row, given, suggested, quality in zip(
                rows_S.tolist(), *(column[rows_S].tolist() for column in columns), strict=True
            )
        )

    def duplicate_groups(self) -> tuple[NDArray[np.int64], ...]:
        """Return the ids of each group of duplicates, ascending; the largest group first."""
        order = np.argsort(self.duplicate_of, kind="stable")
        starts = np.flatnonzero(np.diff(self.duplicate_of[order], prepend=-1))
        groups = [group for group in np.split(order, starts[1:]) if len(group) > 1]
        return tuple(sorted(groups, key=lambda group: (-len(group), int(group[0]))))

    def surplus(self) -> NDArray[np.int64]:
        """Return the ids of all duplicates except one per group, ascending."""
        return np.flatnonzero(self.duplicate_of != np.arange(len(self)))

    def outliers(self) -> NDArray[np.int64]:
        """Return the ids of examples far from all others, the farthest first."""
        farthest_first = np.argsort(-self.outlier_score, kind="stable")
        return farthest_first[: self.findings.outliers.count]

    def clean(self) -> NDArray[np.int64]:
        """Return the ids without sure label issues and surplus duplicates, ascending."""
        excluded = (self._suspects(sure=True), self.surplus())
        return np.setdiff1d(np.arange(len(self)), np.concatenate(excluded))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name: `pandas.DataFrame(diagnosis.columns())`."""
        return {name: getattr(self, name) for name in COLUMNS}

    def show(self, data: Any, number: int = 16) -> Gallery:
        """Show the worst labels in a notebook; `data` is the diagnosed data in any form."""
        import torch  # noqa: PLC0415 - pictures need it

        from lipt.data.images.formats import data_url  # noqa: PLC0415 - torch
        from lipt.data.loading import open_data  # noqa: PLC0415

        issues, names, dataset = self.label_issues()[:number], self.class_names, open_data(data)
        if dataset.num_ids != len(self):
            raise DataError(
                f"the diagnosis is of {len(self)} examples, and {dataset.source} has "
                f"{dataset.num_ids}. Give the diagnosed data."
            )
        images = dataset.images(torch.tensor([issue.id for issue in issues]))
        figures = (
            f"<figure style='{_FIGURE}'><img style='{_PICTURE}' src='{data_url(image, _PIXELS)}'>"
            f"<figcaption>row {issue.id}: {escape(names[issue.given])}, "
            f"like {escape(names[issue.suggested])}</figcaption></figure>"
            for issue, image in zip(issues, images, strict=True)
        )
        return Gallery(f"<div>{''.join(figures)}</div>")

    def _suspects(self, *, sure: bool) -> NDArray[np.int64]:
        suspects = np.flatnonzero(self.suspect)
        worst_first = suspects[np.argsort(self.label_quality[suspects], kind="stable")]
        return worst_first[: self.findings.num_sure] if sure else worst_first

    def __repr__(self) -> str:
        problems = (f"{fact.name}: {fact.text}" for fact in facts(self.findings) if not fact.clear)
        return f"<Diagnosis of {len(self):,} examples; {'; '.join(problems) or 'nothing found'}>"

    def _repr_html_(self) -> str:
        rows = [(fact.name, fact.text) for fact in facts(self.findings)]
        return as_table(f"Diagnosis of {len(self):,} examples", rows)


_PIXELS = 96
_FIGURE = "display:inline-block;margin:4px;text-align:center"
_PICTURE = "height:56px;image-rendering:pixelated"


@dataclass(frozen=True)
class Gallery:
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def _require_columns(diagnosis: Diagnosis) -> None:
    findings = diagnosis.findings
    num_examples, num_classes = len(diagnosis), len(diagnosis.class_names)
    for name, end in (
        ("given_label", num_classes),
        ("suggested_label", num_classes),
        ("duplicate_of", num_examples),
        ("suspect", 2),
    ):
        column_N = getattr(diagnosis, name)
        if column_N.min() < 0 or column_N.max() >= end:
            raise _refused(f"{name} has values outside 0..{end - 1}")
    for name in ("label_quality", "outlier_score"):
        column_N = getattr(diagnosis, name)
        if not np.isfinite(column_N).all() or column_N.min() < 0:
            raise _refused(f"{name} is negative or not finite")
    kept_N = diagnosis.duplicate_of[diagnosis.duplicate_of]
    counts_C = np.bincount(diagnosis.given_label, minlength=num_classes)
    for what, agree in (
        ("duplicates", np.array_equal(kept_N, diagnosis.duplicate_of)),
        ("classes", counts_C.tolist() == list(findings.class_counts)),
        ("suspects", int(diagnosis.suspect.sum()) == findings.label_errors.num_suspects),
        ("surplus", len(diagnosis.surplus()) == findings.duplicates.surplus),
    ):
        if not agree:
            raise _refused(f"its {what} contradict its columns")


# Columns, lists of ids in the findings, and the columns' entries in the file's header.
_BYTES_PER_EXAMPLE = sum(np.dtype(kind).itemsize for kind in COLUMNS.values()) + 32
_BYTES_OF_FINDINGS = 16 * 1024**2


def max_file_bytes(num_examples: int) -> int:
    return num_examples * _BYTES_PER_EXAMPLE + _BYTES_OF_FINDINGS


def read_diagnosis(
    content: bytes,
    *,
    num_examples: int,
    fingerprint: str,
    run_id: str = "",
    manifest: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Read and check a diagnosis' file; DiagnosisError for another format, version or data."""
    from lipt.common.tensor_files import read_container  # noqa: PLC0415

    try:
        file = read_container(
            content,
            max_bytes=max_file_bytes(num_examples),
            max_tensors=4 * len(COLUMNS),
            max_metadata_bytes=max_file_bytes(num_examples),
        )
    except (WeightsError, BlobTooLargeError) as error:
        raise _refused(error.problem) from error
    findings = _parse(file.metadata.get("diagnosis", ""))
    if findings.num_examples != num_examples:
        raise _refused(f"{num_examples} examples were announced, it has {findings.num_examples}")
    if missing := COLUMNS.keys() - file.specs.keys():
        raise _refused(f"it has no {min(missing)}")
    columns: dict[str, NDArray[Any]] = {name: file.tensor(name).numpy() for name in COLUMNS}
    return Diagnosis(
        findings, **columns, fingerprint=fingerprint, run_id=run_id, manifest=dict(manifest or {})
    )


def _parse(text: str) -> Findings:
    try:
        return Findings.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise _refused(f"in its findings {where} cannot be: {first['msg']}") from None


def _refused(why: str) -> DiagnosisError:
    return DiagnosisError(
        f"what arrived is no diagnosis: {why}. Install the same version of lipt on both sides."
    )


_MOST_OTHERS = 10


def export_issues(diagnosis: Diagnosis, filepaths: Sequence[str] | None = None) -> bytes:
    """Export the examples as a .csv file for cleanlab, FiftyOne and pandas.

    Columns have the names and meaning of cleanlab's `Datalab.get_issues()`: scores lie in 0..1, and
    low is bad. `near_duplicate_sets` has up to ten row numbers as JSON. An `outlier_score` is 0.5
    for the median example and 0 far away. `filepaths` are absolute, in data order; None without
    files. Texts that a spreadsheet would run as a formula begin with an apostrophe.
    """
    names = np.array(list(map(csv_cell, diagnosis.class_names)), dtype=object)
    duplicates: list[list[int]] = [[] for _ in range(len(diagnosis))]
    for group in diagnosis.duplicate_groups():
        rows = group.tolist()
        first = rows[: _MOST_OTHERS + 1]  # a group may be the whole data set
        for row in rows:
            duplicates[row] = [other for other in first if other != row][:_MOST_OTHERS]
    columns = {
        "index": range(len(diagnosis)),
        **({} if filepaths is None else {"filepath": map(csv_cell, filepaths)}),
        "given_label": names[diagnosis.given_label],
        "predicted_label": names[diagnosis.suggested_label],
        "is_label_issue": diagnosis.suspect == 1,
        "label_score": _rounded(diagnosis.label_quality),
        "is_near_duplicate_issue": [bool(rows) for rows in duplicates],
        "near_duplicate_sets": [json.dumps(rows) for rows in duplicates],
        "is_outlier_issue": np.isin(np.arange(len(diagnosis)), diagnosis.outliers()),
        "outlier_score": _rounded(1 / (1 + diagnosis.outlier_score)),
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _rounded(column_N: np.ndarray) -> list[float]:
    return [round(value, 6) for value in column_N.tolist()]
