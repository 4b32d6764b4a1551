from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, SubsetError, WeightsError
from lipt.trainer.main_training import Recipe, Trained, TrainingPaused, fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset
from tests.trainer.main_training.conftest import EVERY_EPOCH, RECIPE, StoppedError, equal, net

MakeSubset = Callable[..., Subset]


def stop_after(epoch: int) -> Callable[[EpochRecord], None]:
    def stop(record: EpochRecord) -> None:
        if record.epoch == epoch:
            raise StoppedError

    return stop


@pytest.mark.parametrize(("killed_after", "soft_labels"), [(1, 0.0), (3, 0.5)])
def test_training_that_was_killed_goes_on_to_the_same_weights(
    digits: Dataset, tmp_path: Path, killed_after: int, soft_labels: float
) -> None:
    # 40 examples: two batches of 16 and one of 8 per epoch, four epochs.
    recipe = RECIPE.model_copy(update={"soft_labels": soft_labels})
    soft = torch.rand(40, 10, generator=torch.Generator().manual_seed(0)) if soft_labels else None
    weights = [1.0, 3.0] * 20
    subset = made_up_subset(
        range(40), weights, fingerprint=digits.fingerprint, soft_labels=soft, seed=3
    )
    undisturbed = fit(net(), digits, subset=subset, recipe=recipe)
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(StoppedError):
        # The record comes before the epoch's checkpoint: that epoch is done again.
        fit(
            net(),
            digits,
            subset=subset,
            recipe=recipe,
            checkpoint=path,
            schedule=EVERY_EPOCH,
            on_epoch=[stop_after(killed_after + 1)],
        )
    torch.rand(7)  # the new process's generator stands elsewhere
    records: list[EpochRecord] = []
    resumed = fit(
        net(seed=5),
        digits,
        subset=subset,
        recipe=recipe,
        checkpoint=path,
        on_epoch=[records.append],
    )
    assert records[0].epoch == killed_after + 1
    assert equal(undisturbed, resumed)
    assert resumed.subset_accuracies == undisturbed.subset_accuracies


def test_another_recipes_checkpoint_is_refused(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, checkpoint=path)
    longer = RECIPE.model_copy(update={"steps": 24})
    with pytest.raises(ConfigError) as refused:
        fit(net(), digits, recipe=longer, checkpoint=path)
    assert str(refused.value) == (
        f"{path} is the checkpoint of another training: its recipe.steps is 12, now it is 24. "
        "Remove the file to train from the start, or give the settings that it was made with."
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-10],
        lambda whole: whole[:5],
        lambda _: b"",
        lambda _: b"\x93NUMPY is another kind of file",
        lambda whole: whole.replace(b'\\"epoch\\":', b'\\"epoch\\" ', 1),
        lambda whole: whole.replace(b'\\"epoch\\":', b'\\"epock\\":', 1),
        lambda whole: whole.replace(b'"identity":', b'"identitx":', 1),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_way_on(
    digits: Dataset, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, checkpoint=path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    with pytest.raises(WeightsError) as refused:
        fit(net(), digits, recipe=RECIPE, checkpoint=path)
    assert str(refused.value) == (
        f"{path} is damaged, or no checkpoint. Remove it to train from the start, or name "
        "another file."
    )


def test_training_in_pieces_ends_in_the_weights_of_training_at_a_stretch(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset, tmp_path: Path
) -> None:
    # Four epochs of three steps; without any time a call trains the one that it must.
    subset, path = subset_of(digits, range(40), [1.0, 3.0] * 20), tmp_path / "checkpoint"
    records: list[EpochRecord] = []

    def piece(max_seconds: float) -> Trained:
        return fit(
            net(),
            digits,
            subset=subset,
            test=digits_test,
            recipe=RECIPE,
            checkpoint=path,
            max_seconds=max_seconds,
            on_epoch=[records.append],
        )

    for step in (3, 6, 9):
        with pytest.raises(TrainingPaused) as paused:
            piece(0)
        assert paused.value.progress.step == step
        assert str(paused.value) == (
            f"the time is up: {path} holds training after step {step} of 12. "
            "The same call goes on from there."
        )
    # The last epoch is over with the time: training is done, not paused.
    ended = piece(0)
    undisturbed = fit(net(), digits, subset=subset, test=digits_test, recipe=RECIPE)
    assert [record.epoch for record in records] == [1, 2, 3, 4]
    assert equal(ended, undisturbed)
    assert [look.accuracy for look in ended.looks] == [look.accuracy for look in undisturbed.looks]


def test_a_limit_of_time_needs_a_checkpoint(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"may take 480 s and has no checkpoint.*Name a file"):
        fit(net(), digits, recipe=RECIPE, max_seconds=480)


SIX_EPOCHS = Recipe(epochs=6, batch_size=16, augmentation="none", learning_rate=0.05)
EVERY = 2


class ByWeights:
    """Every second epoch another 40 examples: which ones, the model's weights decide."""

    num_epochs: int | None = None
    losses = None

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


def linear_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture
def make_source(digits: Dataset, subset_of: MakeSubset) -> Callable[..., ByWeights]:
    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        begun = subset_of(digits, range(40)) if first is None else first
        return ByWeights(model, begun, subset_of, digits)

    return make


@pytest.mark.parametrize("killed_after", [2, 3])
def test_a_killed_training_goes_on_with_the_subset_that_it_had(
    digits: Dataset,
    make_source: Callable[..., ByWeights],
    tmp_path: Path,
    killed_after: int,
) -> None:
    undisturbed = fit(linear_net(), digits, recipe=SIX_EPOCHS, reselect=make_source)
    path = tmp_path / "checkpoint.safetensors"
    digests: list[str] = []

    def stop(record: EpochRecord) -> None:
        if record.epoch == killed_after + 1:
            raise StoppedError
        digests.append(record.subset_digest)

    with pytest.raises(StoppedError):
        fit(
            linear_net(),
            digits,
            recipe=SIX_EPOCHS,
            reselect=make_source,
            checkpoint=path,
            schedule=EVERY_EPOCH,
            on_epoch=[stop],
        )

    def make(model: nn.Module, first: Subset | None) -> ByWeights:
        assert first is not None
        assert first.digest == digests[-1]
        return make_source(model, first)

    resumed = fit(linear_net(), digits, recipe=SIX_EPOCHS, reselect=make, checkpoint=path)
    assert equal(undisturbed, resumed)


@pytest.mark.parametrize(
    ("recipe", "num_epochs"),
    [
        (SIX_EPOCHS, 6),
        (SIX_EPOCHS.model_copy(update={"steps": 7}), 3),  # three steps per epoch
        (SIX_EPOCHS.model_copy(update={"steps": 6}), 2),
    ],
)
def test_a_source_is_told_how_many_epochs_there_will_be(
    digits: Dataset, make_source: Callable[..., ByWeights], recipe: Recipe, num_epochs: int
) -> None:
    source = make_source(linear_net(), None)
    fit(source.model, digits, recipe=recipe, reselect=source)
    assert source.told == [num_epochs] * num_epochs


def test_a_later_subset_of_other_data_is_refused(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset
) -> None:
    class Straying:
        subset = subset_of(digits, range(40))
        num_epochs: int | None = None
        losses = None
        identity: Mapping[str, object] = {}

        def before_epoch(self, epoch: int) -> Subset:
            return subset_of(digits_test, range(30)) if epoch else self.subset

    with pytest.raises(SubsetError, match=r"digits-train has"):
        fit(linear_net(), digits, recipe=SIX_EPOCHS, reselect=Straying())
