import pickle
import warnings
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lipt.common.errors import ConfigError
from lipt.trainer import Subset
from lipt.trainer.subsets.weighted import (
    SoftTargetLoss,
    UnweightedWarning,
    WeightedCollate,
    WeightedSubsetLoss,
    normalized_weights,
    weighted_cross_entropy,
)
from tests.trainer.made_up import made_up_subset


def test_each_example_counts_by_its_weight() -> None:
    # Two classes at equal logits: every loss is log 2, so the mean is log 2 * (3 + 1) / 2.
    loss = weighted_cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([3.0, 1.0]))
    assert loss.item() == pytest.approx(2 * 0.693147, rel=1e-5)


def test_normalized_weights_have_mean_one_and_keep_their_ratios() -> None:
    assert normalized_weights(torch.tensor([1.0, 2.0, 5.0])).tolist() == pytest.approx(
        [0.375, 0.75, 1.875]
    )


IMAGES = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
LABELS = np.array([0, 1, 0, 1, 0])


def subset_of(*weights: float, rows: tuple[int, ...] = (1, 4), soft: Any = None) -> Subset:
    return made_up_subset(rows, weights, soft_labels=soft)


SOFT = [[0.25, 0.75], [1.0, 0.0]]


def test_soft_labels_follow_the_weights() -> None:
    chosen = subset_of(1, 3, soft=SOFT).dataset((IMAGES, LABELS), check=False)
    _, labels, weights, soft = next(iter(DataLoader(chosen, batch_size=2)))
    assert (labels.tolist(), weights.tolist(), soft.tolist()) == ([1, 0], [0.5, 1.5], SOFT)


def test_targets_are_between_label_and_soft_label() -> None:
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    weights, soft = torch.tensor([0.5, 1.5]), torch.tensor(SOFT)
    losses = -logits.log_softmax(dim=1)
    # With a quarter of the soft label: (0.75 + 0.0625, 0.1875) and (0.25, 0.75).
    first = 0.8125 * losses[0, 0] + 0.1875 * losses[0, 1]
    second = 0.25 * losses[1, 0] + 0.75 * losses[1, 1]
    found = SoftTargetLoss(0.25)(logits, labels, weights, soft)
    torch.testing.assert_close(found, (0.5 * first + 1.5 * second) / 2)
    assert torch.allclose(
        SoftTargetLoss(0)(logits, labels, weights, soft),
        WeightedSubsetLoss()(logits, labels, weights),
    )


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=r"outside \[0, 1\]"):
        SoftTargetLoss(alpha)


def test_examples_come_with_their_weights() -> None:
    chosen = subset_of(1, 3).dataset((IMAGES, LABELS), check=False)
    assert len(chosen) == 2
    image, label, weight = chosen[1]
    assert np.array_equal(image, IMAGES[4])
    # Of mean 1: 1 and 3 are half and one and a half.
    assert (label, float(weight)) == (0, 1.5)
    raw = subset_of(1, 3).dataset((IMAGES, LABELS), check=False, normalized=False)
    assert [float(raw[place][2]) for place in (0, 1)] == [1.0, 3.0]
    # Dictionaries have them under a key.
    table = datasets.Dataset.from_dict({"text": list("abcde"), "label": LABELS.tolist()})
    row = subset_of(1, 3).dataset(table, check=False)[0]
    assert (row["text"], row["label"], float(row["weight"])) == ("b", 1, 0.5)


def pad(examples: list[Any]) -> dict[str, Tensor]:
    """Knows nothing of weights."""
    assert all(set(example) == {"ids"} for example in examples)
    return {"ids": nn.utils.rnn.pad_sequence([example["ids"] for example in examples]).T}


@pytest.mark.parametrize("soft", [None, SOFT])
def test_a_collate_of_ones_own_is_given_examples_without_them(soft: Any) -> None:
    subset = subset_of(1, 3, soft=soft)
    rows = [{"ids": torch.arange(row)} for row in range(5)]
    collate: WeightedCollate = pickle.loads(pickle.dumps(WeightedCollate(pad)))
    chosen = subset.dataset(rows, check=False)
    batch = next(iter(DataLoader(chosen, batch_size=2, collate_fn=collate)))
    found = {name: column.tolist() for name, column in batch.items()}
    expected: dict[str, Any] = {"ids": [[0, 0, 0, 0], [0, 1, 2, 3]], "weight": [0.5, 1.5]}
    assert found == expected | ({"soft_label": SOFT} if soft else {})
    pairs = subset.dataset((IMAGES, LABELS), check=False)
    images, *others = WeightedCollate()([pairs[0], pairs[1]])
    assert images.shape == (2, 4, 4)
    assert [column.tolist() for column in others] == [[1, 0], [0.5, 1.5], *([SOFT] if soft else [])]


def test_examples_of_a_weighted_subset_without_weights_warn() -> None:
    rows = list(zip(IMAGES, LABELS.tolist(), strict=True))
    with pytest.warns(UnweightedWarning, match=r"from 1 to 3, .* Take subset\.dataset"):
        subset_of(1, 3).apply(rows, check=False)
    table = datasets.Dataset.from_dict({"label": LABELS.tolist()})
    with pytest.warns(UnweightedWarning, match="made-up gives weights"):
        subset_of(1, 3).hf_select(table, check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subset_of(2, 2).apply(rows, check=False)
        subset_of(1, 3).dataset(rows, check=False)
    assert not subset_of(rows=()).is_weighted


def test_the_loss_counts_each_example_by_its_weight() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    labels, weights = torch.tensor([0, 0]), torch.tensor([0.5, 1.5])
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = (0.5 * each[0] + 1.5 * each[1]) / 2
    assert torch.allclose(WeightedSubsetLoss()(logits, labels, weights), expected)
    smoothed = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    assert WeightedSubsetLoss(smoothed)(logits, labels, weights).ndim == 0


def test_a_subset_says_what_it_is() -> None:
    subset = made_up_subset([1, 4], [1, 3])
    assert ("weights", "1 to 3") in subset.facts
    assert repr(subset).startswith("<Subset of 2")
    assert "made-up" in subset._repr_html_()
