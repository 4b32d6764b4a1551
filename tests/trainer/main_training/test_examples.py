from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.inputs.model_input import images_in
from lipt.trainer.main_training import Schedule, TrainingPaused, fit
from lipt.trainer.main_training.examples import Examples, TrainingImages
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.resampling.sources import redraw
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset
from tests.trainer.main_training.conftest import RECIPE, equal, net

CPU = torch.device("cpu")


@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_the_positions_images_in_order(digits: Dataset, *, resident: bool) -> None:
    ids_N = torch.tensor([40, 3, 7, 900, 12])
    images = TrainingImages(digits, ids_N, CPU, resident=resident)
    positions = [torch.tensor([4, 0]), torch.tensor([1]), torch.tensor([2, 3, 1])]
    found = list(images.batches(positions))
    assert images.resident is resident
    for batch_BCHW, positions_B in zip(found, positions, strict=True):
        assert torch.equal(images_in(batch_BCHW), digits.images(ids_N[positions_B]))


def test_a_small_set_is_resident_unasked(digits: Dataset) -> None:
    assert TrainingImages(digits, torch.arange(10), CPU).resident


def test_leaving_early_ends_the_decoding(digits: Dataset) -> None:
    images = TrainingImages(digits, torch.arange(100), CPU, resident=False)
    batches = images.batches(list(torch.arange(100).split(5)))
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # waits for the thread, which has to end


MakeSubset = Callable[..., Subset]
MILD = RECIPE.model_copy(update={"coreset_augmentation": "crop", "padding": 1})


def test_batches_say_which_examples_are_copies(digits: Dataset, subset_of: MakeSubset) -> None:
    subset, coreset = subset_of(digits, [3, 5, 7]), subset_of(digits, [5, 9], [1.0, 3.0])
    examples = Examples(subset, digits, CPU, weighted=True, coreset=coreset)
    assert len(examples) == 5
    assert examples.ids_N.tolist() == [3, 5, 7]
    first, second = examples.batches([torch.tensor([4, 0, 3]), torch.tensor([1, 2])])
    assert first.copies_K is not None
    assert first.copies_K.tolist() == [0, 2]
    assert second.copies_K is not None
    assert second.copies_K.tolist() == []
    # The weights of either have the mean 1; 9 and 5 were given 3 and 1.
    assert first.weights_B.tolist() == [1.5, 1.0, 0.5]
    assert torch.equal(first.examples_B, digits.examples(torch.tensor([9, 3, 5])))  # type: ignore[arg-type]
    assert first.targets_B.tolist() == digits.targets_N[[9, 3, 5]].tolist()


def test_an_epoch_has_the_data_and_the_copies(digits: Dataset, subset_of: MakeSubset) -> None:
    subset, coreset = subset_of(digits, range(40)), subset_of(digits, range(100, 124))
    records: list[EpochRecord] = []
    trained = fit(
        net(), digits, subset=subset, coreset=coreset, recipe=MILD, on_epoch=[records.append]
    )
    # 64 examples are 4 batches of 16, and there are 12 steps.
    assert [record.num_examples for record in records] == [64, 64, 64]
    alone = fit(net(), digits, subset=subset, recipe=MILD)
    assert not equal(trained, alone)


def test_one_seed_gives_one_result(digits: Dataset, subset_of: MakeSubset) -> None:
    subset, coreset = subset_of(digits, range(40)), subset_of(digits, range(20))
    recipe = RECIPE.model_copy(update={"coreset_augmentation": "randaugment"})
    results = [
        fit("resnet8", digits, subset=subset, coreset=coreset, recipe=recipe) for _ in range(2)
    ]
    assert equal(*results)


def test_paused_training_goes_on_with_its_copies(
    digits: Dataset, subset_of: MakeSubset, tmp_path: Path
) -> None:
    subset, coreset = subset_of(digits, range(40)), subset_of(digits, range(100, 124))
    file, every = tmp_path / "t.safetensors", Schedule(checkpoint_seconds=0.0)

    def train(**given: object) -> object:
        return fit(net(), digits, subset=subset, recipe=MILD, schedule=every, **given)  # type: ignore[arg-type]

    whole = train(coreset=coreset)
    with pytest.raises(TrainingPaused):
        train(coreset=coreset, checkpoint=file, max_seconds=0.0)
    with pytest.raises(ConfigError, match="coreset"):
        train(checkpoint=file)
    with pytest.raises(ConfigError, match="coreset"):
        train(checkpoint=file, coreset=subset_of(digits, range(24)))
    while True:
        try:
            pieces = train(coreset=coreset, checkpoint=file, max_seconds=0.0)
        except TrainingPaused:
            continue
        break
    assert equal(whole, pieces)  # type: ignore[arg-type]


def test_a_coreset_of_other_data_is_refused(digits: Dataset, subset_of: MakeSubset) -> None:
    other = made_up_subset([1, 2], fingerprint="0" * 16)
    with pytest.raises(SubsetError, match="belongs to data with fingerprint"):
        fit(net(), digits, subset=subset_of(digits, range(40)), coreset=other, recipe=MILD)


def test_copies_do_not_go_with_draws_by_losses(digits: Dataset, subset_of: MakeSubset) -> None:
    coreset, drawn = subset_of(digits, range(20)), redraw("stale")(digits, 100, 0)
    with pytest.raises(ConfigError, match="losses"):
        fit(net(), digits, coreset=coreset, reselect=drawn, recipe=MILD)
