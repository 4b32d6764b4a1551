from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError
from lipt.trainer import InfoBatchSampler, RedrawingSampler, StaleLossSampler
from lipt.trainer.resampling.samplers import EpochSampler, LossSampler
from tests.trainer.integrations.conftest import NUM_EXAMPLES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip(
        "transformers", reason="the extra 'huggingface' is not installed"
    )
    pytest.importorskip("accelerate", reason="the extra 'huggingface' is not installed")

from lipt.trainer.integrations.huggingface import RedrawingWarning, train_on

# What the frameworks say about pinned memory and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"images": torch.full((3,), float(row)), "ids": row}


class Model(nn.Module):
    """Tells a sampler its losses, and notes what it was shown."""

    def __init__(self, sampler: EpochSampler) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.seen: list[int] = []
        self.sampler = sampler

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.extend(ids.tolist())
        losses_B = (self.net(images).squeeze(-1) - ids % 7).square()
        if isinstance(self.sampler, LossSampler):
            self.sampler.update(ids, losses_B)
        return {"loss": losses_B.mean()}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Model]:
    def train(sampler: EpochSampler, *, resume: str | None = None, **options: Any) -> Model:
        settings: dict[str, Any] = {"save_strategy": "epoch", "dataloader_num_workers": 0}
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            disable_tqdm=True,
            learning_rate=1e-3,
            num_train_epochs=8,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            **(settings | options),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Model(sampler)
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows())
        train_on(trainer, sampler)
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / resume))
        return model

    return train


def random() -> RedrawingSampler:
    return RedrawingSampler(NUM_EXAMPLES, budget=8)


def stale() -> StaleLossSampler:
    return StaleLossSampler(NUM_EXAMPLES, budget=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_is_shown_its_examples(run: Callable[..., Model], workers: int) -> None:
    model = run(random(), dataloader_num_workers=workers)
    alone = random()
    expected: list[int] = []
    for epoch in range(8):
        alone.set_epoch(epoch)
        expected += list(alone)
    assert model.seen == expected
    assert sorted(model.seen[:40]) == list(range(40))


@pytest.mark.parametrize("make", [random, stale])
def test_a_checkpoint_goes_on_in_the_same_order(
    run: Callable[..., Model], make: Callable[[], EpochSampler]
) -> None:
    whole = run(make())
    # Two batches an epoch: this is where epoch 6 begins.
    again = run(make(), resume="checkpoint-12")
    assert again.seen == whole.seen[48:]
    torch.testing.assert_close(again.net.weight, whole.net.weight)


def test_a_checkpoint_without_its_losses_says_so(run: Callable[..., Model], tmp_path: Path) -> None:
    run(stale())
    (tmp_path / "checkpoint-12" / "lipt-redrawing.pt").unlink()
    with pytest.warns(RedrawingWarning, match=r"lipt-redrawing\.pt is missing"):
        run(stale(), resume="checkpoint-12")


def test_epochs_of_another_length_each_are_refused() -> None:
    with pytest.raises(ConfigError, match="counts an epoch's steps once"):
        train_on(object(), InfoBatchSampler(40, num_epochs=8))
