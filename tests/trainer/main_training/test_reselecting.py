"""`fit` with subsets that change between epochs, from a source that it is given or makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, SubsetError
from lipt.trainer.main_training import Recipe, fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.subsets.subset import Subset
from tests.trainer.main_training.conftest import EVERY_EPOCH, StoppedError, equal

MakeSubset = Callable[..., Subset]

RECIPE = Recipe(epochs=6, batch_size=16, augmentation="none", learning_rate=0.05)
EVERY = 2


class ByWeights:
    """Every second epoch another 40 examples: which ones, the model's weights decide."""

    num_epochs: int | None = None

    def __init__(self, model: nn.Module, first: Subset, make: MakeSubset, dataset: Dataset) -> None:
        self.model, self.subset = model, first
        self.identity: dict[str, object] = {"every": EVERY}
        self.epochs: list[int] = []
        self.told: list[int | None] = []
        self._make, self._dataset = make, dataset

    def before_epoch(self, epoch: int) -> Subset:
        self.epochs.append(epoch)
        self.told.append(self.num_epochs)
        if epoch and epoch % EVERY == 0:
            drawn = sum(float(p.detach().double().abs().sum()) for p in self.model.parameters())
            start = int(drawn * 1e6) % 1000
            self.subset = self._make(self._dataset, range(start, start + 40))
        return self.subset


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture
def make_source(digits: Dataset, subset_of: MakeSubset) -> Callable[..., ByWeights]:
    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        begun = subset_of(digits, range(40)) if first is None else first
        return ByWeights(model, begun, subset_of, digits)

    return make


def test_a_source_is_made_of_the_model_that_is_trained(
    digits: Dataset, make_source: Callable[..., ByWeights]
) -> None:
    model = net()
    made: list[ByWeights] = []

    def make(given: nn.Module, first: Subset | None) -> ByWeights:
        assert first is None
        made.append(make_source(given, first))
        return made[0]

    records: list[EpochRecord] = []
    trained = fit(model, digits, recipe=RECIPE, reselect=make, on_epoch=[records.append])
    assert made[0].model is model
    assert made[0].epochs == list(range(6))
    # The first subset decides how many steps there are: three of 40 examples per epoch.
    assert trained.num_steps == 6 * 3
    assert [record.num_examples for record in records] == [40] * 6
    digests = [record.subset_digest for record in records]
    assert digests[0::2] == digests[1::2]
    assert len(set(digests)) == 3


def test_a_named_model_is_what_the_source_is_given(
    digits: Dataset, make_source: Callable[..., ByWeights]
) -> None:
    given: list[nn.Module] = []

    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        given.append(model)
        return make_source(model, first)

    trained = fit("resnet8", digits, recipe=RECIPE, reselect=make)
    final = given[0].state_dict()
    assert all(torch.equal(final[name], trained.weights[name]) for name in final)


@pytest.mark.parametrize("killed_after", [2, 3])
def test_a_killed_training_goes_on_with_the_subset_that_it_had(
    digits: Dataset,
    make_source: Callable[..., ByWeights],
    tmp_path: Path,
    killed_after: int,
) -> None:
    undisturbed = fit(net(), digits, recipe=RECIPE, reselect=make_source)
    path = tmp_path / "checkpoint.safetensors"
    digests: list[str] = []

    def stop(record: EpochRecord) -> None:
        if record.epoch == killed_after + 1:
            raise StoppedError
        digests.append(record.subset_digest)

    with pytest.raises(StoppedError):
        fit(
            net(),
            digits,
            recipe=RECIPE,
            reselect=make_source,
            checkpoint=path,
            schedule=EVERY_EPOCH,
            on_epoch=[stop],
        )

    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        assert first is not None
        assert first.digest == digests[-1]
        return make_source(model, first)

    resumed = fit(net(), digits, recipe=RECIPE, reselect=make, checkpoint=path)
    assert equal(undisturbed, resumed)


def test_a_checkpoint_with_re_selection_is_not_one_without(
    digits: Dataset, make_source: Callable[..., ByWeights], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, reselect=make_source, checkpoint=path)
    with pytest.raises(ConfigError, match=r"its re-selection is True, now it is False"):
        fit(net(), digits, recipe=RECIPE, checkpoint=path)


@pytest.mark.parametrize(
    ("recipe", "num_epochs"),
    [
        (RECIPE, 6),
        (RECIPE.model_copy(update={"steps": 7}), 3),  # three steps per epoch
        (RECIPE.model_copy(update={"steps": 6}), 2),
    ],
)
def test_a_source_is_told_how_many_epochs_there_will_be(
    digits: Dataset, make_source: Callable[..., ByWeights], recipe: Recipe, num_epochs: int
) -> None:
    source = make_source(net(), None)
    fit(source.model, digits, recipe=recipe, reselect=source)
    assert source.told == [num_epochs] * num_epochs


def test_subsets_of_another_size_change_how_many_epochs_there_will_be(
    digits: Dataset, subset_of: MakeSubset
) -> None:
    class Halving:
        subset = subset_of(digits, range(64))
        num_epochs: int | None = None
        identity: Mapping[str, object] = {}
        told: ClassVar[list[int | None]] = []

        def before_epoch(self, epoch: int) -> Subset:
            self.told.append(self.num_epochs)
            if epoch == 1:
                self.subset = subset_of(digits, range(32))
            return self.subset

    fit(net(), digits, recipe=RECIPE.model_copy(update={"steps": 12}), reselect=Halving())
    # Four steps, then two at a time; the smaller size is known from the third epoch on.
    assert Halving.told == [3, 3, 5, 5, 5]


def test_a_checkpoint_of_other_subsets_is_refused_with_both_values(
    digits: Dataset, make_source: Callable[..., ByWeights], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, reselect=make_source, checkpoint=path)

    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        source = make_source(model, first)
        source.identity = {"every": 3, "strategy": "grand"}
        return source

    model = net()
    with pytest.raises(ConfigError) as refused:
        fit(model, digits, recipe=RECIPE, reselect=make, checkpoint=path)
    assert (
        "its selection.every is 2, now it is 3; its selection.strategy is None, now it is 'grand'. "
        "Remove the file to train from the start"
    ) in str(refused.value)
    untouched = net().state_dict()
    assert all(torch.equal(untouched[name], now) for name, now in model.state_dict().items())


def test_a_later_subset_of_other_data_is_refused(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset
) -> None:
    class Straying:
        subset = subset_of(digits, range(40))
        num_epochs: int | None = None
        identity: Mapping[str, object] = {}

        def before_epoch(self, epoch: int) -> Subset:
            return subset_of(digits_test, range(30)) if epoch else self.subset

    with pytest.raises(SubsetError, match=r"digits-train has"):
        fit(net(), digits, recipe=RECIPE, reselect=Straying())
