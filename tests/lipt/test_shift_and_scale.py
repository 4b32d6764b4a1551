"""Numbers of any shift and scale are worth the same, whatever holds them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from safetensors.torch import save_file

import lipt

N = 120
RNG = np.random.default_rng(0)
CLASSES = np.arange(N) % 2
# The first column separates the classes by 20 deviations; 5 labels are wrong.
X = np.stack([20 * CLASSES + RNG.normal(size=N), *RNG.normal(size=(2, N))], axis=1)
WRONG = [7, 33, 50, 81, 110]
LABELS = np.where(np.isin(np.arange(N), WRONG), 1 - CLASSES, CLASSES)
NAMES = list("abc")


def _csv(x: np.ndarray, folder: Path) -> str:
    frame = _frame(x, folder)
    frame.to_csv(folder / "t.csv", index=False)
    return f"csv:{folder / 't.csv'}"


def _jsonl(x: np.ndarray, folder: Path) -> str:
    rows = _frame(x, folder).to_dict("records")
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"jsonl:{folder / 't.jsonl'}"


def _parquet(x: np.ndarray, folder: Path) -> str:
    _frame(x, folder).to_parquet(folder / "t.parquet")
    return f"parquet:{folder / 't.parquet'}?label=label"


def _features(x: np.ndarray, folder: Path) -> str:
    save_file({"X": torch.from_numpy(x), "y": torch.from_numpy(LABELS)}, folder / "t.safetensors")
    return f"features:{folder / 't.safetensors'}"


def _frame(x: np.ndarray, _: Path) -> pd.DataFrame:
    return pd.DataFrame(x, columns=NAMES).assign(label=LABELS)


READERS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "array": lambda x, _: (x, LABELS),
    "tensors by name": lambda x, _: ({"v": torch.from_numpy(x)}, LABELS),
    "sparse matrix": lambda x, _: (scipy.sparse.csr_matrix(x), LABELS),
    "frame": _frame,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "features": _features,
}
FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "+1e7": lambda x: x + 1e7,
    "+1.7e9": lambda x: x + 1.7e9,
    "*1e-18": lambda x: x * 1e-18,
    "*1e18": lambda x: x * 1e18,
    "*1e-300": lambda x: x * 1e-300,
    "*1e300": lambda x: x * 1e300,
}


@pytest.mark.parametrize("reader", READERS)
def test_wrong_labels_are_found_at_any_shift_and_scale(reader: str, tmp_path: Path) -> None:
    for name, form in FORMS.items():
        found = lipt.diagnose(READERS[reader](form(X), tmp_path), progress=False)
        assert np.flatnonzero(found.suspect).tolist() == WRONG, name


BROKEN = np.where((np.arange(N) == 2)[:, None], [-9999, 0, 0], X)  # a cell of the first column


@pytest.mark.parametrize("reader", READERS)
def test_a_broken_cell_hides_no_classes(reader: str, tmp_path: Path) -> None:
    found = lipt.diagnose(READERS[reader](BROKEN, tmp_path), progress=False)
    assert found.findings.proxy["accuracy"] > 0.9


def test_a_broken_feature_of_the_user_s_own_hides_no_classes() -> None:
    features = {"features": torch.from_numpy(BROKEN)}
    found = lipt.diagnose((X[:, 1:], LABELS), features=features, progress=False)
    assert found.findings.proxy["accuracy"] > 0.9


@pytest.mark.parametrize("form", FORMS)
def test_features_of_the_user_s_own_choose_the_same(form: str) -> None:
    def chosen(features: np.ndarray) -> list[int]:
        subset = lipt.select(
            (X, CLASSES), fraction=0.1, strategy="kcenter", features=features, progress=False
        )
        return subset.indices.tolist()

    assert chosen(FORMS[form](X)) == chosen(X)


@pytest.mark.parametrize("form", FORMS)
def test_main_training_predicts_numbers_at_any_shift_and_scale(form: str) -> None:
    change, target_N = FORMS[form], 3 * X[:, 0] + X[:, 1]
    train, test = (
        (change(X[rows]), change(target_N[rows])) for rows in (slice(0, 80), slice(80, N))
    )
    recipe = lipt.Recipe(steps=60, batch_size=32, learning_rate=0.05)
    trained = lipt.fit("mlp", train, test=test, recipe=recipe, device="cpu")
    assert trained.test_accuracy is not None
    assert trained.test_accuracy > 0.9


def test_numbers_that_vary_little_have_strata_of_distinct_names() -> None:
    names = lipt.open_dataset((X, 1.7e9 + X[:, 1])).class_names
    assert len(set(names)) == len(names) == 10


def test_a_test_set_is_read_in_the_type_of_the_training_set() -> None:
    # Float32 keeps 0 to 200 apart, but not the training set's numbers.
    train, test = pd.DataFrame({"a": 1e8 + X[:, 0], "label": CLASSES}), _frame(X, Path())
    test = pd.DataFrame({"a": np.round(test["a"]) * 8 + 1e8, "label": CLASSES})
    opened = [str(lipt.open_dataset(frame).inputs) for frame in (train, test)]
    assert opened == ["float64[1]", "float32[1]"]
    recipe = lipt.Recipe(steps=1, batch_size=32)
    trained = lipt.fit("mlp", train, test=test, recipe=recipe, device="cpu")
    assert trained.test_accuracy is not None
