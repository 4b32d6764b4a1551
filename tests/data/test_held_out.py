from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import lipt
from lipt.common.errors import DataError
from lipt.data.dataset import Dataset
from lipt.data.held_out import comparable
from lipt.data.inputs.model_input import columns_in
from lipt.data.loading import open_data
from lipt.data.targets.kinds import TargetKind
from tests.in_memory import in_memory

# Class i of a training set is the point 10 i on a line.
ANT, BEE, CAT, DOG = ("ant", "bee", "cat", "dog")
POINTS = {ANT: 0.0, BEE: 10.0, CAT: 20.0, DOG: 30.0}


def named(*names: str) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[POINTS[name]] for name in names]), np.array(names)


def counted(labels: Sequence[Any]) -> tuple[np.ndarray, Sequence[Any]]:
    return np.arange(float(len(labels)))[:, None], labels


def images(names: Sequence[str], labels: Sequence[int], source: str = "images") -> Dataset:
    pixels = torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8)
    return in_memory(source, tuple(names), torch.tensor(labels), "f" * 64, pixels)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [((ANT, BEE, CAT), (CAT, BEE), [2, 1]), ((CAT, ANT, BEE), (CAT, ANT, CAT), [2, 0, 2])],
)
def test_classes_are_matched_by_name(
    train: Sequence[str], test: Sequence[str], expected: list[int]
) -> None:
    ours = open_data(named(*train))
    found = comparable(open_data(named(*test)), ours)
    assert found.labels_N.tolist() == expected
    assert found.class_names == ours.class_names
    assert found.target == ours.target


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        # Numbers are names: of gaps, below 0, as texts, and above those that stay as they are.
        ([0, 1, 2], [1, 2], [1, 2]),
        ([-1, 1], [1, 1], [1, 1]),
        ([0, 1000, 5000], [5000, 1000], [2, 1]),
        (["0", "2", "1"], [2, 0], [2, 0]),
        ([3, 7], ["7", "3"], [7, 3]),
        ([0.0, 1.0] * 10, [1.0, 0.0], [1, 0]),
        # A number is the position of a word.
        ([ANT, BEE, CAT], [2, 1], [2, 1]),
        ([0, 1, 2], [CAT, ANT, BEE], [2, 0, 1]),
        ([*map(str, range(600)), ANT], [600, 599, 600], None),
    ],
)
def test_numbers_are_names(train: list[Any], test: list[Any], expected: list[int] | None) -> None:
    ours, theirs = open_data(counted(train)), open_data(counted(test))
    if expected is None:
        with pytest.raises(DataError, match="has 600, which the training set"):
            comparable(theirs, ours)
    else:
        assert comparable(theirs, ours).labels_N.tolist() == expected


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (
            named(*(ANT, BEE, CAT) * 4),
            named(ANT, BEE, DOG),
            r"\(test data\) has dog, which .*\(data\)",
        ),
        (counted([0, 1, 2] * 4), counted([1, 3]), "has 3, which the training"),
        (counted([1, 1000] * 4), counted([0, 1]), "has 0, which the training"),
    ],
)
def test_unknown_classes_are_refused_by_name(train: Any, test: Any, words: str) -> None:
    for call in (
        lambda: lipt.fit("mlp", train, test=test, recipe={"steps": 1, "batch_size": 2}),
        lambda: lipt.compare(train, test, fractions=[1.0], seeds=1, progress=False),
    ):
        with pytest.raises(DataError, match=rf"the test set .*{words}"):
            call()


def test_a_model_is_right_about_the_named_class() -> None:
    # Three well separated classes, of which the test set has two, in another order.
    train, test = named(*(ANT, BEE, CAT) * 10), named(CAT, BEE, CAT)
    recipe = {"steps": 300, "batch_size": 30, "learning_rate": 0.1}
    assert lipt.fit("linear", train, test=test, recipe=recipe).test_accuracy == 1.0


def test_unused_names_and_equal_names_of_images_are_matched() -> None:
    train = images("abc", [0, 1, 2])
    # Its class x has no example.
    found = comparable(images("xcb", [1, 2, 1]), train)
    assert found.labels_N.tolist() == [2, 1, 2]
    # A name may stand for two classes: each keeps its place.
    names = ("crane", "maillot", "crane")
    found = comparable(images(names, [2, 0]), images(names, [0, 1, 2]))
    assert found.labels_N.tolist() == [2, 0]


def test_labels_of_several_are_matched_by_name() -> None:
    train = open_data(([[1.0], [2.0], [3.0]], [[ANT, BEE], [], [CAT]]))
    found = comparable(open_data(([[1.0], [2.0]], [[CAT, BEE], []])), train)
    assert found.targets_N.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert found.target == train.target
    # One label in every row of a test set is no class of its own.
    found = comparable(open_data(([[1.0], [2.0]], [[CAT], [ANT]])), train)
    assert found.targets_N.tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(DataError, match="has dog, which the training set"):
        comparable(open_data(([[1.0], [2.0]], [[CAT, DOG], []])), train)
    unnamed = open_data(([[1.0], [2.0]], [[1, 1], [0, 0]]))
    with pytest.raises(DataError, match=r"has 2 targets a row, but the .* has 3 targets a row"):
        comparable(unnamed, open_data(([[1.0], [2.0]], [[1, 1, 0], [0, 0, 0]])))


def test_targets_are_read_as_those_of_the_training_set() -> None:
    rows = np.arange(40.0)[:, None]
    prices = open_data((rows, rows[:, 0] + 0.5))
    # Few whole numbers would be classes.
    found = comparable(open_data((rows[:3], [7, 3, 7])), prices)
    assert found.target.kind is TargetKind.NUMBER
    assert found.targets_N.tolist() == [[7.0], [3.0], [7.0]]
    classes = open_data((rows, np.arange(40) % 2 * 1.0))
    # Too few floats to be classes by themselves.
    found = comparable(open_data((rows[:3], np.array([1.0, 0.0, 1.0]))), classes)
    assert found.labels_N.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"\(data\) has multi-label targets, but .* regression"):
        comparable(open_data((rows[:2], [[1, 1], [0, 1]])), prices)


def test_a_test_set_gets_the_training_sets_flags_of_missing_numbers() -> None:
    labels = np.arange(4) % 2
    whole = np.arange(8.0).reshape(4, 2)
    holed = np.where(whole == 3, np.nan, whole)
    wide, narrow = open_data((holed, labels)), open_data((whole, labels))
    every = torch.arange(4)
    found = comparable(narrow, wide)
    assert found.inputs == wide.inputs
    assert columns_in(found.examples(every))[""][1].tolist() == [2, 3, 0, 0]
    found = comparable(wide, narrow)
    assert found.inputs == narrow.inputs
    assert columns_in(found.examples(every))[""][1].tolist() == [2, pytest.approx(13 / 3)]
    with pytest.raises(DataError, match="Give one with the same inputs"):
        comparable(open_data((whole[:, :1], labels)), wide)
