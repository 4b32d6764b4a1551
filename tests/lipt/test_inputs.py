"""All kinds of data that people hold: each gives a subset, or one message with a remedy."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from PIL import Image
from sklearn.datasets import load_wine
from torch.utils.data import TensorDataset

import lipt
from lipt.common.errors import DivergedError, LiptError
from tests.lipt.digits import QUICK, few_digits

N = 40
NUMBERS = np.random.default_rng(0).normal(size=(N, 4)) * [1.0, 1e3, 1e6, 1e-6]
BYTES = np.random.default_rng(1).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
CLASSES = np.arange(N) % 2
NAMES = ["no", "yes"] * (N // 2)
TEXTS = [f"the {name} of row {row}" for row, name in enumerate(NAMES)]
FRAME = pd.DataFrame(
    {
        "age": np.arange(N),
        "income": [float("nan"), *range(N - 1)],
        "city": ["Rome", None] * (N // 2),
        "member": [True, False] * (N // 2),
        "since": pd.date_range("2024-01-01", periods=N),
        "kind": pd.Categorical(["a", "b", "c", "d"] * (N // 4)),
        "label": NAMES,
    }
)
FEATURES = FRAME.drop(columns="label")


class Rows:
    """A map-style data set that is no torch Dataset."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return TEXTS[row], int(CLASSES[row])


def hugging_face(**columns: Any) -> Any:
    return datasets.Dataset.from_dict({**columns, "label": CLASSES.tolist()})


def pictures() -> list[Image.Image]:
    return [Image.fromarray(one.transpose(1, 2, 0)) for one in BYTES]


def pairs(examples: Any) -> list[tuple[Any, Any]]:
    return [(example, int(label)) for example, label in zip(examples, CLASSES, strict=True)]


FRAME_COLUMNS = "numbers float32[6], categories int64[3]"
TWO_COLUMNS = "numbers float32[1], categories int64[1]"
IMAGES = "3x8x8 images"
# What is given, and the examples that it is understood as.
TAKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a name": (lambda: "digits-test", "1x8x8 images"),
    "grayscale arrays": (lambda: (BYTES[:, 0], CLASSES), "1x8x8 images"),
    "channels first": (lambda: (BYTES, CLASSES), IMAGES),
    "channels last": (lambda: (BYTES.transpose(0, 2, 3, 1), CLASSES), IMAGES),
    "float arrays in 0..1": (lambda: (BYTES / 255, CLASSES), IMAGES),
    "float tensors in 0..1": (lambda: (torch.tensor(BYTES) / 255, CLASSES), IMAGES),
    "float pairs in 0..1": (lambda: pairs(torch.tensor(BYTES) / 255), IMAGES),
    "pictures": (lambda: pairs(pictures()), IMAGES),
    "image table": (
        lambda: hugging_face(image=pictures()).cast_column("image", datasets.Image()),
        IMAGES,
    ),
    "number array": (lambda: (NUMBERS, CLASSES), "float64[4]"),
    "number tensor": (lambda: (torch.tensor(NUMBERS), torch.tensor(CLASSES)), "float64[4]"),
    "whole numbers": (lambda: (NUMBERS.astype(int), CLASSES), "float32[4]"),
    "other byte order": (lambda: (NUMBERS.astype(">f8"), CLASSES.astype(">i4")), "float64[4]"),
    "reversed columns": (lambda: (NUMBERS[:, ::-1], CLASSES), "float64[4]"),
    "read-only array": (lambda: (np.broadcast_to(NUMBERS, (1, N, 4))[0], CLASSES), "float64[4]"),
    "grids of whole numbers": (lambda: (BYTES.astype(int), CLASSES), "float32[3x8x8]"),
    "grids of bytes": (lambda: (np.stack([BYTES, BYTES], 1), CLASSES), "uint8[2x3x8x8]"),
    "normalized channels first": (lambda: (BYTES / 64.0 - 2, CLASSES), "float64[3x8x8]"),
    "masked array": (lambda: (np.ma.masked_less(NUMBERS, 0), CLASSES), "float64[8]"),
    "masked whole numbers": (
        lambda: (np.ma.masked_equal(BYTES[:, 0, 0].astype(int), BYTES[0, 0, 0, 0]), CLASSES),
        "float64[16]",
    ),
    "missing numbers": (lambda: (np.where(NUMBERS < 0, np.nan, NUMBERS), CLASSES), "float64[8]"),
    "number lists": (lambda: (NUMBERS.tolist(), NAMES), "float32[4]"),
    "TensorDataset": (lambda: TensorDataset(*map(torch.tensor, (NUMBERS, CLASSES))), "float64[4]"),
    "named tensors": (lambda: ({"ids": torch.ones(N, 5).long()}, CLASSES), "ids int64[5]"),
    "sparse matrix": (lambda: (scipy.sparse.csr_matrix(NUMBERS), CLASSES), "float32[4]"),
    "objects": (lambda: (FRAME[["age", "city"]].to_numpy(), NAMES), TWO_COLUMNS),
    "cell lists": (lambda: (FRAME[["age", "city"]].to_numpy().tolist(), NAMES), TWO_COLUMNS),
    "DataFrame": (lambda: FRAME, FRAME_COLUMNS),
    "shuffled DataFrame": (lambda: FRAME.sample(frac=1, random_state=0), FRAME_COLUMNS),
    "X frame and series": (lambda: (FEATURES, FRAME["label"]), FRAME_COLUMNS),
    "X frame and array": (lambda: (FEATURES, CLASSES), FRAME_COLUMNS),
    "pyarrow table": (lambda: pa.Table.from_pandas(FRAME), FRAME_COLUMNS),
    "columns": (lambda: {"age": list(range(N)), "city": NAMES, "label": NAMES}, TWO_COLUMNS),
    "records": (lambda: FRAME.to_dict("records"), FRAME_COLUMNS),
    "table of values": (lambda: hugging_face(a=range(N), b=range(N)), "float32[2]"),
    "table of vectors": (lambda: hugging_face(a=NUMBERS.tolist()), "float32[4]"),
    "text pairs": (lambda: list(zip(TEXTS, NAMES, strict=True)), "int64[128]"),
    "texts and labels": (lambda: (TEXTS, NAMES), "int64[128]"),
    "text series": (lambda: (pd.Series(TEXTS), FRAME["label"]), "int64[128]"),
    "text frame": (lambda: pd.DataFrame({"review": TEXTS, "label": NAMES}), "int64[128]"),
    "text table": (lambda: hugging_face(text=TEXTS), "int64[128]"),
    "text data set": (Rows, "int64[128]"),
    "labels as names": (lambda: (BYTES, NAMES), IMAGES),
    "several labels": (lambda: (TEXTS, [["a"], ["a", "b"]] * (N // 2)), "int64[128]"),
    "numbers to predict": (lambda: (FEATURES, NUMBERS[:, 0]), "numbers float32[6], categories"),
}

# What is given, and a part of the refusal with its remedy.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy frame": (lambda: SimpleNamespace(collect=list), r"Give what its collect\(\) returns"),
    "file names": (lambda: [("cat.jpg", 0), ("dog.jpg", 1)], "imagefolder:PATH"),
    "missing names": (lambda: (NUMBERS, ["no", None] * (N // 2)), "leave out rows without a label"),
    "a missing category": (
        lambda: (NUMBERS, pd.Series(["no", *NAMES[1:-1], None], dtype="category")),
        "row 39 has the label nan",
    ),
    "masked labels": (lambda: (NUMBERS, np.ma.masked_equal(CLASSES, 1)), "Correct or remove"),
    "masked names": (
        lambda: (NUMBERS, np.ma.masked_array(NAMES, [False, True] * (N // 2))),
        "row 1 has the label None",
    ),
    "one class": (lambda: (NUMBERS, np.zeros(N, int)), "needs at least 2"),
    "other lengths": (lambda: (NUMBERS, CLASSES[1:]), "Give one label for each"),
    "infinite numbers": (
        lambda: (NUMBERS / 0.0, CLASSES),
        "not finite in its tensor: inf at position 0. Correct it",
    ),
    "arrays in cells": (
        lambda: pd.DataFrame({"v": list(NUMBERS), "label": CLASSES}),
        "Give a text or a number",
    ),
    "frame without rows": (lambda: FRAME.iloc[:0], "Give the training data"),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("kind", TAKEN)
def test_every_kind_of_data_can_be_selected_from(kind: str) -> None:
    make, inputs = TAKEN[kind]
    data = make()
    subset = lipt.select(data, fraction=0.2, strategy="uniform", run=QUICK, progress=False)
    opened = lipt.open_dataset(data)
    assert str(opened.inputs).startswith(inputs)
    assert len(subset) == len(opened) // 5
    if not isinstance(data, str):
        assert len(subset.dataset(data)) == len(subset)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_data_is_refused_in_two_sentences_with_a_remedy(kind: str) -> None:
    make, remedy = REFUSED[kind]
    with pytest.raises(LiptError, match=remedy) as refused:
        lipt.select(make(), fraction=0.2, strategy="uniform", run=QUICK, progress=False)
    assert len(str(refused.value)) <= 250


def test_the_target_is_kept_and_the_manifest_says_what_was_standardized() -> None:
    frame = FRAME.rename(columns={"label": "outcome"})
    subset = lipt.select(frame, target="outcome", strategy="uniform", run=QUICK, progress=False)
    data = subset.manifest["data"]
    assert (data["target"], data["standardized"]) == ("outcome", ["numbers float32[6]"])
    assert data["note"].startswith("1 missing numbers in 1 columns")
    assert len(subset.apply(frame)) == 4
    trained = lipt.fit(
        *("mlp", frame), target="outcome", subset=subset, test=frame, recipe=lipt.Recipe(steps=1)
    )
    assert trained.test_accuracy is not None


def test_raw_scales_are_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    wine: Any = load_wine()
    pretrained = lipt.pretrain((wine.data, wine.target), run=QUICK, progress=False)
    assert len(pretrained.learners) == 2
    assert "diverged" not in caplog.text


@pytest.mark.parametrize(
    ("dtype", "scale", "warns"), [(float, 1, True), (int, 1, True), (float, 1 / 255, False)]
)
def test_grids_of_large_numbers_are_named_as_used_unscaled(
    dtype: type, scale: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lipt.open_dataset(((BYTES * scale).astype(dtype), CLASSES))
    assert ("images to 0..1" in caplog.text) == warns


def test_diverged_learners_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    fast = {**QUICK, "learners": {**QUICK["learners"], "learning_rate": 1e30, "num_steps": 3}}
    with pytest.raises(DivergedError) as told:
        lipt.pretrain(few_digits(), run=fast, progress=False)
    assert str(told.value).startswith("all 2 learners diverged (loss not finite after step ")
    assert str(told.value).endswith(". Scale the features, or lower learners.learning_rate.")
    assert caplog.text == ""
