import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec, InputSpec
from lipt.trainer.main_training import Recipe, evenly
from lipt.trainer.main_training.recipe import marks


@pytest.mark.parametrize(
    ("drop_last", "num_examples", "sizes"),
    [
        (False, 256, [256]),
        (False, 257, [257]),  # of a single example there is no variance
        (False, 258, [256, 2]),
        (False, 513, [256, 257]),
        (False, 1, [1]),
        (True, 257, [256]),
        (True, 511, [256]),
        (True, 512, [256, 256]),
        (True, 3, [3]),
    ],
)
def test_a_smaller_last_batch_is_merged_dropped_or_kept(
    drop_last: bool, num_examples: int, sizes: list[int]
) -> None:
    recipe = Recipe(epochs=3, drop_last=drop_last)
    batches = recipe.batches(torch.arange(num_examples))
    assert [len(batch) for batch in batches] == sizes
    assert torch.cat(batches).tolist() == list(range(sum(sizes)))
    assert recipe.num_steps(num_examples) == 3 * len(sizes)


def test_the_rate_rises_linearly_and_falls_along_a_cosine() -> None:
    recipe = Recipe(learning_rate=0.4, warmup_steps=4)
    rates = [recipe.learning_rate_at(step, 14) for step in (0, 1, 2, 3, 4, 9, 14)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.2, 0.0])


@pytest.mark.parametrize(
    ("inputs", "given", "text"),
    [
        (ImageSpec(3, 32, 32), {}, "images shifted by up to 4 pixels and mirrored"),
        (ImageSpec(3, 224, 64), {}, "images shifted by up to 8 pixels and mirrored"),
        (ImageSpec(1, 28, 28), {}, "images shifted by up to 3 pixels"),
        (ImageSpec(3, 27, 32), {}, "augmentation: none"),
        (ImageSpec(1, 8, 8), {}, "augmentation: none"),
        (ColumnsSpec((Column("", ColumnType.FLOAT32, (40,)),)), {}, "augmentation: none"),
        # What is given counts.
        (ImageSpec(1, 8, 8), {"padding": 1}, "images shifted by up to 1 pixel"),
        (
            ImageSpec(1, 8, 8),
            {"augmentation": "crop_flip"},
            "images shifted by up to 4 pixels and mirrored",
        ),
        (
            ImageSpec(3, 32, 32),
            {"augmentation": "randaugment", "padding": 2},
            "images shifted by up to 2 pixels, mirrored, and changed by RandAugment",
        ),
    ],
    ids=str,
)
def test_automatic_augmentation_fits_the_inputs(
    inputs: InputSpec, given: dict[str, object], text: str
) -> None:
    fitted = Recipe.model_validate(given).fitted_to(inputs)
    assert fitted.augmentation_text == text
    assert fitted.fitted_to(inputs) == fitted


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"steps": 0}, {"learning_rate": 0}, {"momentum": 1}, {"lr": 0.1}],
    ids=str,
)
def test_invalid_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Recipe.model_validate(wrong)


@pytest.mark.parametrize(
    ("shares", "num_steps", "expected"),
    [
        (evenly(1), 12, {12}),
        (evenly(3), 12, {4, 8, 12}),
        ((0.25, 0.5, 1.0), 10, {2, 5, 10}),
        ((1 / 49,), 49, {1, 49}),  # 1 / 49 * 49 < 1
        (None, 12, set()),
    ],
)
def test_accuracies_are_taken_at_the_steps_of_their_shares(
    shares: tuple[float, ...] | None, num_steps: int, expected: set[int]
) -> None:
    assert marks(shares, num_steps) == expected
