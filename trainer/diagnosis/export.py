"""Export: a diagnosis as a table of its examples, for cleanlab's, FiftyOne's and pandas' users.

The columns have the names and the meaning of those of cleanlab's `Datalab.get_issues()`: a score
lies in 0..1, and low is bad. One row per example, in the order of the data:

    index                    row number in the data
    filepath                 absolute, where the data are files
    given_label              the name of its class
    predicted_label          the name of the class that fits best
    is_label_issue           whether the given label is likely to be wrong
    label_score              how well the given label fits
    is_near_duplicate_issue  whether there is another like it, exactly or nearly
    near_duplicate_sets      the row numbers of up to ten of those others; JSON text in a .csv
    is_outlier_issue         whether it is far from everything
    outlier_score            how near it is to others: 0.5 for the median example, 0 is far away
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lipt.common.errors import ConfigError
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.writing.files import import_pyarrow

Table = dict[str, list[Any]]

_NEEDED_FOR = "Issues as .parquet"
_SETS = "near_duplicate_sets"
_MOST_OTHERS = 10


def issue_table(diagnosis: Diagnosis, filepaths: Sequence[str] | None = None) -> Table:
    """The columns by name, each with a value per example; `filepaths` are in their order."""
    names = np.array(diagnosis.class_names, dtype=object)
    others: list[list[int]] = [[] for _ in range(len(diagnosis))]
    for group in diagnosis.duplicate_groups():
        rows = group.tolist()
        # A group may be the whole data set.
        first = rows[: _MOST_OTHERS + 1]
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
        "label_score": _shortest(diagnosis.label_quality),
        "is_near_duplicate_issue": [bool(rows) for rows in others],
        _SETS: others,
        "is_outlier_issue": far.tolist(),
        # Of how far an example is in terms of the median one's: 0.5 is usual.
        "outlier_score": _shortest(1 / (1 + diagnosis.outlier_score)),
    }


def export_issues(
    diagnosis: Diagnosis, path: Path, filepaths: Sequence[str] | None = None
) -> bytes:
    """The bytes of a table file with the suffix of `path`."""
    return writer_of(path)(issue_table(diagnosis, filepaths))


def writer_of(path: Path) -> Callable[[Table], bytes]:
    """The writer for the suffix of a path."""
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ConfigError(
            f"'{path}' has the suffix {path.suffix!r}; issues are exported as one of "
            f"{', '.join(_WRITERS)}. Choose one of these suffixes."
        )
    if writer is _to_parquet:
        import_pyarrow(_NEEDED_FOR)
    return writer


def _shortest(column_N: np.ndarray) -> list[float]:
    return [round(value, 6) for value in column_N.tolist()]


def _rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def _to_csv(table: Table) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, _SETS: json.dumps(row[_SETS])} for row in _rows(table))
    return text.getvalue().encode()


def _to_json(table: Table) -> bytes:
    return f"{json.dumps(_rows(table), ensure_ascii=False)}\n".encode()


def _to_parquet(table: Table) -> bytes:
    arrow, parquet = import_pyarrow(_NEEDED_FOR)
    sets = arrow.array(table[_SETS], arrow.list_(arrow.int64()))
    sink = io.BytesIO()
    parquet.write_table(arrow.table({**table, _SETS: sets}), sink)
    return sink.getvalue()


_WRITERS: dict[str, Callable[[Table], bytes]] = {
    ".csv": _to_csv,
    ".json": _to_json,
    ".parquet": _to_parquet,
}
