"""Bundled tables: breast_cancer and wine, numbers measured by physicians and chemists.

Shapes: N rows, D columns.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from lipt.common.data.sources.bundled import bundled_file, rows_of_part
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.inputs.columns import Column, ColumnType

_FILES: Mapping[str, str] = MappingProxyType(
    {"breast_cancer": "breast_cancer.csv", "wine": "wine_data.csv"}
)

BUNDLED_TABLES = tuple(f"{name}{part}" for name in _FILES for part in ("", "-train", "-test"))


def bundled_table_rows(source: str) -> ColumnRows:
    """One of them, or every fifth row of each class as its test part, and the rest.

    Args:
        source: "breast_cancer", 569 tumours by 30 measurements, malignant or benign; "wine", 178
            wines by 13 measurements, from three growers; either with "-train" or "-test".

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source: Wolberg, Mangasarian, Street & Street 1995 and Forina et al. 1991, UCI.
    """
    name = source.partition("-")[0]
    file = bundled_file(_FILES[name], needed_for=f"the data set {name}")
    stamp = Stamp.of([file])
    with file.open(encoding="utf-8", newline="") as opened:
        # The first line has the numbers of rows and columns, and the classes' names.
        (_, num_columns, *names), *lines = csv.reader(opened)
    values_NL = np.array(lines, dtype=np.float64)
    labels_N = values_NL[:, -1].astype(np.int64)
    rows = rows_of_part(source, labels_N)
    numbers_ND = torch.from_numpy(values_NL[rows, : int(num_columns)].astype(np.float32))
    column = Column("", ColumnType.FLOAT32, (int(num_columns),), standardized=True)
    return ColumnRows(
        source=source,
        names=tuple(names),
        labels_N=torch.from_numpy(labels_N[rows]),
        columns=(column,),
        tensors={"": numbers_ND},
        stamp=stamp,
    )
