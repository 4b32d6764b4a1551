import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError, SubsetError, WeightsError
from lipt.data.dataset import Dataset
from lipt.trainer.main_training import Recipe, Trained, TrainingPaused, fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.resampling.samplers import RepeatedRandom
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset
from tests.trainer.main_training.conftest import EVERY_EPOCH, RECIPE, StoppedError, equal, net

MakeSubset = Callable[..., Subset]


def with_subset(digits: Dataset, *, soft: bool = False) -> Callable[..., Trained]:
    # 40 examples: two batches of 16 and one of 8 per epoch, four epochs.
    labels = torch.rand(40, 10, generator=torch.Generator().manual_seed(0)) if soft else None
    subset = made_up_subset(
        range(40), [1.0, 3.0] * 20, fingerprint=digits.fingerprint, soft_labels=labels, seed=3
    )
    recipe = RECIPE.model_copy(update={"soft_labels": 0.5 if soft else 0.0})
    return lambda **options: fit(net(), digits, subset=subset, recipe=recipe, **options)


def with_draws(digits: Dataset) -> Callable[..., Trained]:
    def run(**options: Any) -> Trained:
        source = RepeatedRandom(digits, 40, seed=3)
        return fit(net(), digits, recipe=RECIPE, reselect=source, **options)

    return run


def with_weights(digits: Dataset) -> Callable[..., Trained]:
    def run(**options: Any) -> Trained:
        make: Any = partial(ByWeights, digits)
        return fit(linear_net(), digits, recipe=SIX_EPOCHS, reselect=make, **options)

    return run


@pytest.mark.parametrize(
    ("trainer", "killed_after"),
    [
        (with_subset, 1),
        (partial(with_subset, soft=True), 3),
        *itertools.product([with_weights], [2, 3]),
        *itertools.product([with_draws], [1, 2]),
    ],
)
def test_killed_training_resumes_to_the_same_weights(
    digits: Dataset,
    tmp_path: Path,
    trainer: Callable[[Dataset], Callable[..., Trained]],
    killed_after: int,
) -> None:
    run, path = trainer(digits), tmp_path / "checkpoint.safetensors"
    first: list[EpochRecord] = []
    undisturbed = run(on_epoch=[first.append])

    def stop(record: EpochRecord) -> None:
        # The record comes before the epoch's checkpoint: that epoch is done again.
        if record.epoch == killed_after + 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(checkpoint=path, schedule=EVERY_EPOCH, on_epoch=[stop])
    torch.rand(7)  # the new process's generator stands elsewhere
    later: list[EpochRecord] = []
    resumed = run(checkpoint=path, on_epoch=[later.append])
    assert [record.epoch for record in later] == [one.epoch for one in first[killed_after:]]
    assert [record.subset_digest for record in later] == [
        record.subset_digest for record in first[killed_after:]
    ]
    assert equal(undisturbed, resumed)
    assert resumed.subset_accuracies == undisturbed.subset_accuracies


def test_next_tokens_resume_with_both_means_of_adamw(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {row}"}) for row in range(16)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    data, path = f"jsonl:{tmp_path}/texts.jsonl?text=text&max_length=8", tmp_path / "checkpoint"
    recipe = {"steps": 6, "batch_size": 8}
    run = partial(fit, "text:causal", data, recipe=recipe, device="cpu", schedule=EVERY_EPOCH)
    undisturbed = run()
    assert undisturbed.recipe.learning_rate == 1e-3

    def stop(record: EpochRecord) -> None:
        if record.epoch == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(checkpoint=path, on_epoch=[stop])
    assert equal(undisturbed, run(checkpoint=path))


def test_a_checkpoint_of_another_training_is_refused(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, checkpoint=path)
    longer = RECIPE.model_copy(update={"steps": 24})
    with pytest.raises(ConfigError) as refused:
        fit(net(), digits, recipe=longer, checkpoint=path)
    assert str(refused.value) == (
        f"{path} is the checkpoint of another training: its recipe.steps is 12, now it is 24. "
        "Remove the file to train from the start, or give the settings that it was made with."
    )
    path.unlink()
    one, other = (RepeatedRandom(digits, 40, seed) for seed in (0, 1))
    fit(net(), digits, recipe=RECIPE, reselect=one, checkpoint=path)
    with pytest.raises(ConfigError, match=r"its selection\.seed is 0, now it is 1"):
        fit(net(), digits, recipe=RECIPE, reselect=other, checkpoint=path)


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
def test_a_damaged_checkpoint_is_refused_with_a_remedy(
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


def test_resumed_training_equals_uninterrupted_training(
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
    assert [one.accuracy for one in ended.evaluations] == [
        one.accuracy for one in undisturbed.evaluations
    ]


SIX_EPOCHS = Recipe(epochs=6, batch_size=16, augmentation="none", learning_rate=0.05)


class ByWeights:
    """Every second epoch another 40 examples: which ones, the model's weights decide."""

    num_epochs: int | None = None

    def __init__(self, dataset: Dataset, model: nn.Module, first: Subset | None) -> None:
        self.model, self.dataset = model, dataset
        self.subset = self.from_row(0) if first is None else first
        self.identity: dict[str, object] = {"every": 2}
        self.told: list[int | None] = []

    def from_row(self, start: int) -> Subset:
        return made_up_subset(range(start, start + 40), fingerprint=self.dataset.fingerprint)

    def before_epoch(self, epoch: int) -> Subset:
        self.told.append(self.num_epochs)
        if epoch and epoch % 2 == 0:
            drawn = sum(float(p.detach().double().abs().sum()) for p in self.model.parameters())
            self.subset = self.from_row(int(drawn * 1e6) % 1000)
        return self.subset


def linear_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("recipe", "num_epochs"),
    [
        (SIX_EPOCHS, 6),
        (SIX_EPOCHS.model_copy(update={"steps": 7}), 3),  # three steps per epoch
        (SIX_EPOCHS.model_copy(update={"steps": 6}), 2),
    ],
)
def test_a_source_is_told_the_number_of_epochs(
    digits: Dataset, recipe: Recipe, num_epochs: int
) -> None:
    source: Any = ByWeights(digits, linear_net(), None)
    fit(source.model, digits, recipe=recipe, reselect=source)
    assert source.told == [num_epochs] * num_epochs


def test_a_first_or_later_subset_of_other_data_is_refused(
    digits: Dataset, digits_test: Dataset
) -> None:
    with pytest.raises(SubsetError, match=f"ffff.*{digits.fingerprint}"):
        fit(net(), digits, subset=made_up_subset([1]), recipe=RECIPE)
    source: Any = ByWeights(digits, linear_net(), None)
    source.dataset = digits_test
    with pytest.raises(SubsetError, match=r"digits-train has"):
        fit(source.model, digits, recipe=SIX_EPOCHS, reselect=source)
