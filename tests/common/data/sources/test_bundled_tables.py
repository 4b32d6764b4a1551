from __future__ import annotations

import numpy as np
import pytest

from lipt.common.data.sources.bundled import BUNDLED_TABLES, bundled_table_rows

datasets = pytest.importorskip("sklearn.datasets")


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_tables_are_what_scikit_learn_loads(name: str) -> None:
    loaded, rows = getattr(datasets, f"load_{name}")(), bundled_table_rows(name)
    assert np.array_equal(rows.tensors[""].numpy(), loaded.data.astype(np.float32))
    assert np.array_equal(rows.labels_N.numpy(), loaded.target)
    assert rows.class_names == tuple(loaded.target_names)
    assert rows.columns[0].shape == loaded.data.shape[1:]


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_the_parts_of_a_table_are_disjoint_and_of_every_class(name: str) -> None:
    whole, train, test = (bundled_table_rows(name + part) for part in ("", "-train", "-test"))
    assert set(test.labels_N.tolist()) == set(train.labels_N.tolist())
    parts = sorted(part.raw(row) for part in (train, test) for row in range(len(part)))
    assert parts == sorted(whole.raw(row) for row in range(len(whole)))
    assert len(test) in range(len(whole) // 5 - 3, len(whole) // 5 + 1)


def test_names_are_those_of_the_tables_and_their_parts() -> None:
    assert BUNDLED_TABLES[:3] == ("breast_cancer", "breast_cancer-train", "breast_cancer-test")
    assert len(BUNDLED_TABLES) == 6
