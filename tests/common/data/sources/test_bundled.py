import numpy as np
import pytest

from lipt.common.data.sources.bundled import bundled_rows
from lipt.common.data.sources.rows import ColumnRows

datasets = pytest.importorskip("sklearn.datasets")


def opened(name: str) -> ColumnRows:
    rows = bundled_rows(name)
    assert isinstance(rows, ColumnRows)
    return rows


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_tables_are_what_scikit_learn_loads_and_their_parts_disjoint(name: str) -> None:
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
