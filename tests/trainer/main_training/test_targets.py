"""Main training on labels and numbers: the score, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.data.registry import load_columns
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.user_data import rows_of_data
from lipt.common.errors import ConfigError, DataError, SubsetError
from lipt.common.targets.kinds import TargetKind
from lipt.trainer import Recipe, fit
from lipt.trainer.main_training.examples import require_comparable
from tests.trainer.made_up import made_up_subset

RECIPE = Recipe(steps=60, batch_size=16, learning_rate=0.05, augmentation="none")


def opened(targets: object, *, seed: int = 0) -> Dataset:
    """Examples of three figures, and what is made of these."""
    inputs_ND = torch.randn(64, 3, generator=torch.Generator().manual_seed(seed))
    rows = [(row, made) for row, made in zip(inputs_ND, targets(inputs_ND), strict=True)]  # type: ignore[operator]
    found = rows_of_data("mine:data", rows)
    assert isinstance(found, ColumnRows)
    return load_columns(found, image_size=None)


def numbers(inputs_ND: Tensor) -> list[float]:
    """In units of their own: a thousand and more."""
    return (1000 + 100 * inputs_ND[:, 0] - 50 * inputs_ND[:, 2]).tolist()


def labels(inputs_ND: Tensor) -> list[list[int]]:
    return (inputs_ND[:, :2] > 0).int().tolist()


def classes(inputs_ND: Tensor) -> list[int]:
    return (inputs_ND[:, 0] > 0).int().tolist()


@pytest.mark.parametrize(
    ("targets", "num_outputs", "kind"),
    [(numbers, 1, TargetKind.NUMBER), (labels, 2, TargetKind.CLASSES)],
)
def test_a_linear_model_learns_what_is_linear(
    targets: object, num_outputs: int, kind: TargetKind
) -> None:
    torch.manual_seed(0)
    train, test = opened(targets), opened(targets, seed=1)
    trained = fit(nn.Linear(3, num_outputs), train, test=test, recipe=RECIPE, device="cpu")
    assert trained.kind is kind
    assert trained.test_accuracy is not None
    assert trained.test_accuracy > 0.9


def test_the_score_of_numbers_is_r_squared_in_their_own_units() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model = nn.Linear(3, 1)
    train, test = opened(numbers), opened(numbers, seed=1)
    trained = fit(model, train, test=test, recipe=RECIPE, device="cpu")
    inputs_ND = torch.stack([test.examples(torch.tensor([row]))[""][0] for row in range(64)])  # type: ignore[index]
    told = train.target.in_own_units(model(inputs_ND).detach())  # type: ignore[attr-defined]
    expected = metrics.r2_score(test.targets_N.numpy(), told.numpy())
    assert trained.test_accuracy == pytest.approx(expected, rel=1e-4)


def test_smoothed_numbers_are_refused() -> None:
    recipe = RECIPE.model_copy(update={"label_smoothing": 0.1})
    with pytest.raises(ConfigError, match=r"label_smoothing = 0\.1: of numbers there is nothing"):
        fit(nn.Linear(3, 1), opened(numbers), recipe=recipe, device="cpu")


@pytest.mark.parametrize("other", [classes, labels])
def test_a_test_set_with_other_targets_is_refused(other: object) -> None:
    with pytest.raises(DataError, match="mine:data is regression data with a number, which is"):
        require_comparable(opened(other), opened(numbers))
    require_comparable(opened(numbers, seed=1), opened(numbers))


@pytest.mark.parametrize("targets", [numbers, labels])
def test_rows_with_such_targets_are_recognized_as_a_subsets_data(targets: object) -> None:
    inputs_ND = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    rows = list(zip(inputs_ND, targets(inputs_ND), strict=True))  # type: ignore[operator]
    subset = made_up_subset([1, 5], fingerprint=opened(targets).fingerprint)
    assert len(subset.apply(rows)) == 2
    last, target = rows[-1]
    changed = [*rows[:-1], (last, next(other for _, other in rows if other != target))]
    with pytest.raises(SubsetError, match="fingerprint"):
        subset.apply(changed)
