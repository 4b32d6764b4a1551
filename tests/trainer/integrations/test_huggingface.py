from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lipt.common.errors import ConfigError, SubsetError
from lipt.trainer import ReselectingSampler, SubsetSampler
from lipt.trainer.resampling.samplers import EpochSampler, LossSampler
from tests.trainer.fake_client import FakeClient
from tests.trainer.integrations.conftest import (
    NUM_EXAMPLES,
    infobatch,
    numbers,
    random,
    seeded,
    stale,
    subset_of,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip(
        "transformers", reason="the extra 'huggingface' is not installed"
    )
    accelerate: Any = pytest.importorskip(
        "accelerate", reason="the extra 'huggingface' is not installed"
    )

from lipt.trainer.integrations.huggingface import SamplerStateWarning, train_on

# What the frameworks say about pinned memory and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings(
    "ignore", "error::lipt.trainer.resampling.reselection.ReselectionWarning"
)


class Rows(Dataset[dict[str, Any]]):
    """Each example's features are its own number."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"images": torch.full((3,), float(row)), "ids": row}


class Model(nn.Module):
    """Tells a sampler its losses where that wants them, and notes what it was shown."""

    def __init__(self, sampler: Any = None) -> None:
        super().__init__()
        self.net: nn.Module = seeded(lambda: nn.Linear(3, 1))
        self.seen: list[int] = []
        self.sampler = sampler

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.extend(ids.tolist())
        losses_B = (self.net(images).squeeze(-1) - ids % 7).square()
        if isinstance(self.sampler, LossSampler):
            self.sampler.update(ids, losses_B)
        return {"loss": losses_B.mean()}

    def epochs(self) -> list[list[int]]:
        """Eight examples each."""
        return [sorted(self.seen[start : start + 8]) for start in range(0, len(self.seen), 8)]


Run = Callable[..., Model]


@pytest.fixture
def run(tmp_path: Path, make_sampler: Callable[..., ReselectingSampler]) -> Run:
    """Trains a new model with a sampler, made of it where none is given."""

    def train(
        sampler: Any = None, *, epochs: int = 8, every: int = 2, resume: str = "", **options: Any
    ) -> Model:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            disable_tqdm=True,
            learning_rate=1e-4,
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            **({"save_strategy": "epoch"} | options),
        )
        model = Model(sampler)
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows())
        train_on(trainer, sampler or make_sampler(model.net, every=every))
        trainer.train(resume_from_checkpoint=str(tmp_path / resume) if resume else None)
        return model

    return train


@pytest.mark.parametrize(
    "options", [{}, {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}]
)
def test_every_epoch_is_shown_the_subset_of_its_time(
    run: Run, fake_client: FakeClient, options: dict[str, Any]
) -> None:
    model = run(epochs=5, **options)
    assert model.epochs() == [numbers(number) for number in (0, 0, 1, 1, 2)]
    assert model.seen[:8] != model.seen[8:16]  # the same examples in another order
    assert len(fake_client.asked) == 3


def test_every_epoch_is_shown_what_its_sampler_draws(run: Run) -> None:
    alone, expected = random(), list[int]()
    for epoch in range(8):
        alone.set_epoch(epoch)
        expected += list(alone)
    assert run(random()).seen == expected
    assert sorted(expected[:40]) == list(range(40))


@pytest.mark.slow
def test_what_no_epoch_would_use_is_not_asked_for(
    run: Run, make_sampler: Callable[..., ReselectingSampler], fake_client: FakeClient
) -> None:
    # Four epochs of two steps: at the last one's beginning none is due any more.
    sampler = make_sampler(nn.Linear(3, 1), prefetch=True)
    run(sampler, max_steps=7)
    sampler.reselection._executor.shutdown()
    assert len(fake_client.asked) == 2


def test_a_checkpoint_goes_on_with_its_subset(run: Run, fake_client: FakeClient) -> None:
    first = run(epochs=7, every=3)
    asked = len(fake_client.asked)
    # Two batches an epoch: this is where epoch 5 begins.
    second = run(epochs=7, every=3, resume="checkpoint-10")
    assert second.seen[:8] == first.seen[40:48]
    assert second.epochs() == [numbers(1), numbers(asked + 1)]
    assert fake_client.asked[-1]["previous"] == subset_of(1)


@pytest.mark.parametrize("make", [random, stale])
def test_a_checkpoint_goes_on_in_the_same_order(run: Run, make: Callable[[], EpochSampler]) -> None:
    whole = run(make())
    again = run(make(), resume="checkpoint-12")
    assert again.seen == whole.seen[48:]
    torch.testing.assert_close(again.net.state_dict(), whole.net.state_dict())


def test_a_checkpoint_within_an_epoch_goes_on_within_its_order(run: Run) -> None:
    first = run(epochs=4, save_strategy="steps", save_steps=1)
    second = run(epochs=4, resume="checkpoint-5")
    assert second.seen[:12] == first.seen[20:32]


def test_a_checkpoint_s_sampler_state_has_to_be_there_whole(run: Run, tmp_path: Path) -> None:
    run(epochs=2)
    path = tmp_path / "checkpoint-2" / "lipt-sampler.pt"
    state = torch.load(path, weights_only=True)
    path.unlink()
    with pytest.warns(SamplerStateWarning, match=r"lipt-sampler\.pt is missing"):
        run(epochs=2, resume="checkpoint-2")
    subset = state["reselection"]["subset"]
    state["reselection"]["subset"] = subset.replace("[0, 1", "[0, 2", 1)
    torch.save(state, path)
    with pytest.raises(SubsetError):
        run(epochs=2, resume="checkpoint-2")


def test_samplers_that_do_not_fit_the_trainer_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"among 2 ranks.*without rank and num_ranks"):
        train_on(object(), SubsetSampler(subset_of(0), rank=1, num_ranks=2))
    with pytest.raises(ConfigError, match="counts an epoch's steps once"):
        train_on(object(), infobatch())


def test_accelerate_needs_nothing_but_the_samplers_epoch(
    make_sampler: Callable[..., ReselectingSampler],
) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    sampler = make_sampler(model.net)
    loader, prepared = accelerator.prepare(DataLoader(Rows(), batch_size=4, sampler=sampler), model)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch in loader:
            prepared(**batch)
    assert model.epochs() == [numbers(number) for number in (0, 0, 1, 1, 2)]
