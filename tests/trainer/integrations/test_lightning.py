from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipt.trainer import ReselectingSampler
from tests.trainer.fake_client import FakeClient
from tests.trainer.integrations.conftest import subset_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl: Any = pytest.importorskip(
        "lightning.pytorch", reason="the extra 'lightning' is not installed"
    )

from lipt.trainer.integrations.lightning import ReselectionCallback

# Lightning's advice on loggers, workers and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):  # type: ignore[misc]
    """Learns nothing much, and notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.seen: dict[int, list[int]] = {}
        self.waited: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (images_BD,) = batch
        self.seen.setdefault(self.current_epoch, []).extend(images_BD[:, 0].int().tolist())
        return self.net(images_BD).square().mean()

    def on_train_epoch_end(self) -> None:
        self.waited.append(float(self.trainer.callback_metrics["subset_waited_seconds"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


@pytest.fixture
def fit(tmp_path: Path, images_ND: torch.Tensor) -> Callable[..., Any]:
    def run(
        module: Module,
        sampler: ReselectingSampler,
        epochs: int,
        *,
        resume: Path | None = None,
        **loading: Any,
    ) -> Any:
        loader = DataLoader(TensorDataset(images_ND), batch_size=4, sampler=sampler, **loading)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[ReselectionCallback(sampler)],
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=epochs,
        )
        trainer.fit(module, loader, ckpt_path=resume)
        return trainer

    return run


def shown(module: Module, number: int) -> list[int]:
    return [epoch for epoch, seen in module.seen.items() if sorted(seen) == numbers(number)]


def numbers(number: int) -> list[int]:
    return [int(index) for index in subset_of(number).indices]


@pytest.mark.parametrize("loading", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_every_epoch_is_shown_the_subset_of_its_time(
    make_sampler: Callable[..., ReselectingSampler],
    fake_client: FakeClient,
    fit: Callable[..., Any],
    loading: dict[str, Any],
) -> None:
    module = Module()
    fit(module, make_sampler(module.net), 5, **loading)
    assert [shown(module, number) for number in range(3)] == [[0, 1], [2, 3], [4]]
    assert module.seen[0] != module.seen[1]  # the same examples in another order
    assert len(fake_client.asked) == 3
    assert module.waited[0] == 0.0 < module.waited[2]


@pytest.mark.parametrize("loading", [{}, {"num_workers": 1}])
def test_a_checkpoint_goes_on_with_its_subset(
    make_sampler: Callable[..., ReselectingSampler],
    fake_client: FakeClient,
    fit: Callable[..., Any],
    tmp_path: Path,
    loading: dict[str, Any],
) -> None:
    whole = Module()
    fit(whole, make_sampler(whole.net, every=3), 7, **loading)
    fake_client.asked.clear()
    first = Module()
    trainer = fit(first, make_sampler(first.net, every=3), 5, **loading)
    trainer.save_checkpoint(tmp_path / "five.ckpt")
    asked = len(fake_client.asked)
    second = Module()
    sampler = make_sampler(second.net, every=3)
    # This one's own first subset, number 2, is not that of the checkpoint.
    fit(second, sampler, 7, resume=tmp_path / "five.ckpt", **loading)
    # Epoch 5 goes on with the subset of epoch 3, and at 6 one is due.
    assert second.seen[5] == whole.seen[5]
    assert shown(second, 1) == [5]
    assert shown(second, 3) == [6]
    assert len(fake_client.asked) == asked + 2
    assert fake_client.asked[-1]["previous"] == subset_of(1)


def test_what_no_epoch_would_use_is_not_asked_for(
    make_sampler: Callable[..., ReselectingSampler],
    fake_client: FakeClient,
    fit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    module = Module()
    sampler = make_sampler(module.net, prefetch=True)
    trainer = fit(module, sampler, 4)
    trainer.save_checkpoint(tmp_path / "four.ckpt")
    sampler.reselection._executor.shutdown()
    assert len(fake_client.asked) == 2
    # A finished training, too, announces the epoch that would follow.
    again = Module()
    sampler = make_sampler(again.net, first=subset_of(5))
    fit(again, sampler, 4, resume=tmp_path / "four.ckpt")
    assert not again.seen
    assert len(fake_client.asked) == 2
