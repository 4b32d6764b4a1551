import inspect
import logging
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lipt.common.data.sources.bundled import bundled_rows
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.texts import hashing_tokenizer
from lipt.common.errors import DataError

datasets = pytest.importorskip("sklearn.datasets")


def opened(name: str) -> ColumnRows:
    rows = bundled_rows(name)
    assert isinstance(rows, ColumnRows)
    return rows


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_bundled_tables_equal_scikit_learn_s_with_disjoint_splits(name: str) -> None:
    loaded, rows = getattr(datasets, f"load_{name}")(), opened(name)
    assert np.array_equal(rows.tensors[""].numpy(), loaded.data.astype(np.float32))
    assert np.array_equal(rows.labels_N.numpy(), loaded.target)
    assert rows.class_names == tuple(loaded.target_names)
    assert rows.columns[0].shape == loaded.data.shape[1:]
    whole, train, test = (opened(name + part) for part in ("", "-train", "-test"))
    assert set(test.labels_N.tolist()) == set(train.labels_N.tolist())
    parts = sorted(part.raw(row) for part in (train, test) for row in range(len(part)))
    assert parts == sorted(whole.raw(row) for row in range(len(whole)))
    assert len(test) in range(len(whole) // 5 - 3, len(whole) // 5 + 1)


pytestmark = pytest.mark.slow


def test_standard_library_paragraphs_are_labelled_with_their_package() -> None:
    rows = opened("pydocs")
    assert len(rows) > 2000
    assert rows.labels_N.bincount().min() > 200
    text = inspect.getdoc(logging.Logger)
    assert text is not None
    paragraph = text.split("\n\n")[0]
    ((numbers, _),) = hashing_tokenizer(32, 2**13).encode([paragraph])
    (row,) = [
        row
        for row, tokens in enumerate(rows.tensors[""].tolist())
        if tokens == numbers + [0] * (32 - len(numbers))
    ]
    assert rows.class_names[rows.labels_N[row]] == "logging"


def test_missing_python_sources_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(DataError, match="there are no sources of asyncio"):
        opened("pydocs")
