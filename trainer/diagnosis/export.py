"""Export: a diagnosis as a CSV table of its examples, for cleanlab's, FiftyOne's and pandas' users.

The columns have the names and the meaning of those of cleanlab's `Datalab.get_issues()`: a score
lies in 0..1, and low is bad. One row per example, in the order of the data:

    index                    row number in the data
    filepath                 absolute, where the data are files
    given_label              the name of its class
    predicted_label          the name of the class that fits best
    is_label_issue           whether the given label is likely to be wrong
    label_score              how well the given label fits
    is_near_duplicate_issue  whether there is another like it, exactly or nearly
    near_duplicate_sets      the row numbers of up to ten of those others, as JSON
    is_outlier_issue         whether it is far from everything
    outlier_score            how near it is to others: 0.5 for the median example, 0 is far away
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from lipt.trainer.diagnosis.diagnosis import Diagnosis

_MOST_OTHERS = 10


def issue_table(
    diagnosis: Diagnosis, filepaths: Sequence[str] | None = None
) -> dict[str, list[Any]]:
    """The columns by name, each with a value per example; `filepaths` are in their order."""
    names = np.array(diagnosis.class_names, dtype=object)
    others: list[list[int]] = [[] for _ in range(len(diagnosis))]
    for group in diagnosis.duplicate_groups():
        rows = group.tolist()
        first = rows[: _MOST_OTHERS + 1]  # a group may be the whole data set
        for row in rows:
            others[row] = [other for other in first if other != row][:_MOST_OTHERS]
    far = np.zeros(len(diagnosis), bool)
    far[diagnosis.outliers()] = True
    return {
        "index": list(range(len(diagnosis))),
        **({} if filepaths is None else {"filepath": list(filepaths)}),
        "given_label": names[diagnosis.given_label].tolist(),
        "predicted_label": names[diagnosis.suggested_label].tolist(),
        "is_label_issue": (diagnosis.suspect == 1).tolist(),
        "label_score": _rounded(diagnosis.label_quality),
        "is_near_duplicate_issue": [bool(rows) for rows in others],
        "near_duplicate_sets": [json.dumps(rows) for rows in others],
        "is_outlier_issue": far.tolist(),
        "outlier_score": _rounded(1 / (1 + diagnosis.outlier_score)),
    }


def export_issues(diagnosis: Diagnosis, filepaths: Sequence[str] | None = None) -> bytes:
    """The bytes of the table as .csv."""
    table = issue_table(diagnosis, filepaths)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


def _rounded(column_N: np.ndarray) -> list[float]:
    return [round(value, 6) for value in column_N.tolist()]
