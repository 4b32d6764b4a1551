from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lipt.common.errors import ConfigError, SubsetError
from lipt.trainer import ReselectingSampler, SubsetSampler
from lipt.trainer.reselection.reselection import ReselectionWarning
from tests.trainer.fake_client import FakeClient
from tests.trainer.integrations.conftest import subset_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip(
        "transformers", reason="the extra 'huggingface' is not installed"
    )
    accelerate: Any = pytest.importorskip(
        "accelerate", reason="the extra 'huggingface' is not installed"
    )

from lipt.trainer.integrations.huggingface import train_on

# What the frameworks say about pinned memory and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings(
    "ignore", "error::lipt.trainer.reselection.reselection.ReselectionWarning"
)


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, images_ND: torch.Tensor) -> None:
        self.images_ND = images_ND

    def __len__(self) -> int:
        return len(self.images_ND)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"images": self.images_ND[row]}


class Model(nn.Module):
    """Learns nothing much, and notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.seen: list[int] = []

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.extend(images[:, 0].int().tolist())
        return {"loss": self.net(images).square().mean()}

    def epochs(self) -> list[list[int]]:
        """Eight examples each."""
        return [sorted(self.seen[start : start + 8]) for start in range(0, len(self.seen), 8)]


def numbers(number: int) -> list[int]:
    return [int(index) for index in subset_of(number).indices]


@pytest.fixture
def make_trainer(tmp_path: Path, images_ND: torch.Tensor) -> Callable[..., Any]:
    def make(model: nn.Module, epochs: int, **options: Any) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            disable_tqdm=True,
            learning_rate=1e-6,
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="epoch",
            use_cpu=True,
            **options,
        )
        return transformers.Trainer(model, arguments, train_dataset=Rows(images_ND))

    return make


@pytest.mark.parametrize(
    "options", [{}, {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}]
)
def test_every_epoch_is_shown_the_subset_of_its_time(
    make_sampler: Callable[..., ReselectingSampler],
    make_trainer: Callable[..., Any],
    fake_client: FakeClient,
    options: dict[str, Any],
) -> None:
    model = Model()
    trainer = make_trainer(model, 5, **options)
    train_on(trainer, make_sampler(model.net))
    trainer.train()
    assert model.epochs() == [numbers(number) for number in (0, 0, 1, 1, 2)]
    assert model.seen[:8] != model.seen[8:16]  # the same examples in another order
    assert len(fake_client.asked) == 3


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{}, {"max_steps": 7}])
def test_what_no_epoch_would_use_is_not_asked_for(
    make_sampler: Callable[..., ReselectingSampler],
    make_trainer: Callable[..., Any],
    fake_client: FakeClient,
    limit: dict[str, int],
) -> None:
    # Four epochs of two steps: at the last one's beginning none is due any more.
    model = Model()
    sampler = make_sampler(model.net, prefetch=True)
    trainer = make_trainer(model, 4, **limit)
    train_on(trainer, sampler)
    trainer.train()
    sampler.reselection._executor.shutdown()
    assert len(fake_client.asked) == 2


def test_a_checkpoint_goes_on_with_its_subset(
    make_sampler: Callable[..., ReselectingSampler],
    make_trainer: Callable[..., Any],
    fake_client: FakeClient,
    tmp_path: Path,
) -> None:
    first = Model()
    trainer = make_trainer(first, 7)
    train_on(trainer, make_sampler(first.net, every=3))
    trainer.train()
    asked = len(fake_client.asked)
    second = Model()
    trainer = make_trainer(second, 7)
    train_on(trainer, make_sampler(second.net, every=3))
    # Two batches an epoch: this is where epoch 5 begins.
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert second.seen[:8] == first.seen[40:48]
    assert second.epochs() == [numbers(1), numbers(asked + 1)]
    assert fake_client.asked[-1]["previous"] == subset_of(1)


def test_a_checkpoint_within_an_epoch_goes_on_within_its_order(
    make_sampler: Callable[..., ReselectingSampler],
    make_trainer: Callable[..., Any],
    tmp_path: Path,
) -> None:
    first = Model()
    trainer = make_trainer(first, 4)
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 1
    train_on(trainer, make_sampler(first.net))
    trainer.train()
    second = Model()
    trainer = make_trainer(second, 4)
    train_on(trainer, make_sampler(second.net))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert second.seen[:12] == first.seen[20:32]


def test_a_checkpoint_without_its_subset_says_so(
    make_sampler: Callable[..., ReselectingSampler],
    make_trainer: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model = Model()
    trainer = make_trainer(model, 2)
    train_on(trainer, make_sampler(model.net))
    trainer.train()
    path = tmp_path / "checkpoint-2" / "lipt-reselection.json"
    state = json.loads(path.read_text())
    path.unlink()
    trainer = make_trainer(Model(), 2)
    train_on(trainer, make_sampler(model.net))
    with pytest.warns(ReselectionWarning, match="lipt-reselection.json is missing"):
        trainer.train(resume_from_checkpoint=str(path.parent))
    subset = state["reselection"]["subset"]
    state["reselection"]["subset"] = subset.replace("[0, 1", "[0, 2", 1)
    path.write_text(json.dumps(state))
    trainer = make_trainer(Model(), 2)
    train_on(trainer, make_sampler(model.net))
    with pytest.raises(SubsetError):
        trainer.train(resume_from_checkpoint=str(path.parent))


def test_a_fixed_subset_is_drawn_from_without_a_callback(
    make_trainer: Callable[..., Any],
) -> None:
    model = Model()
    trainer = make_trainer(model, 2)
    before = len(trainer.callback_handler.callbacks)
    train_on(trainer, SubsetSampler(subset_of(3)))
    trainer.train()
    assert model.epochs() == [numbers(3)] * 2
    assert len(trainer.callback_handler.callbacks) == before


def test_a_sampler_of_one_rank_is_refused(make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"among 2 ranks.*without rank and num_ranks"):
        train_on(make_trainer(Model(), 1), SubsetSampler(subset_of(0), rank=1, num_ranks=2))


def test_accelerate_needs_nothing_but_the_samplers_epoch(
    make_sampler: Callable[..., ReselectingSampler], images_ND: torch.Tensor
) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    sampler = make_sampler(model.net)
    data = TensorDataset(images_ND)
    loader, prepared = accelerator.prepare(DataLoader(data, batch_size=4, sampler=sampler), model)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for (images_BD,) in loader:
            prepared(images_BD)
    assert model.epochs() == [numbers(number) for number in (0, 0, 1, 1, 2)]
