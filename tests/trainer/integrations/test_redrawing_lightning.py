from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipt.common.errors import ConfigError
from lipt.trainer import InfoBatchSampler, RedrawingSampler, StaleLossSampler, with_ids
from lipt.trainer.resampling.samplers import EpochSampler, LossSampler
from tests.trainer.integrations.conftest import NUM_EXAMPLES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl: Any = pytest.importorskip(
        "lightning.pytorch", reason="the extra 'lightning' is not installed"
    )

from lipt.trainer.integrations.lightning import RedrawingCallback

# Lightning's advice on loggers, workers and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):  # type: ignore[misc]
    """Tells a sampler its losses, and notes what it was shown."""

    def __init__(self, sampler: EpochSampler) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Linear(3, 1)
        self.seen: dict[int, list[int]] = {}
        self.sampler = sampler

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids_B, (images_BD,) = batch
        self.seen.setdefault(self.current_epoch, []).extend(ids_B.tolist())
        losses_B = (self.net(images_BD).squeeze(-1) - ids_B % 7).square()
        if isinstance(self.sampler, LossSampler):
            self.sampler.update(ids_B, losses_B)
        if isinstance(self.sampler, InfoBatchSampler):
            losses_B = losses_B * self.sampler.weights(ids_B)
        return losses_B.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-5)


@pytest.fixture
def fit(tmp_path: Path, images_ND: torch.Tensor) -> Callable[..., Any]:
    def run(
        module: Module,
        epochs: int,
        *,
        resume: Path | None = None,
        reloaded: int = 1,
        **loading: Any,
    ) -> Any:
        data = with_ids(TensorDataset(images_ND))
        loader: Any = DataLoader(data, batch_size=4, sampler=module.sampler, **loading)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[RedrawingCallback(module.sampler)],
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=reloaded,
        )
        trainer.fit(module, loader, ckpt_path=resume)
        return trainer

    return run


def random() -> RedrawingSampler:
    return RedrawingSampler(NUM_EXAMPLES, budget=8)


def stale() -> StaleLossSampler:
    return StaleLossSampler(NUM_EXAMPLES, budget=8)


def infobatch() -> InfoBatchSampler:
    return InfoBatchSampler(NUM_EXAMPLES, num_epochs=8)


@pytest.mark.parametrize("loading", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_every_epoch_is_shown_its_examples(
    fit: Callable[..., Any], loading: dict[str, Any]
) -> None:
    module, alone = Module(random()), random()
    fit(module, 6, reloaded=0, **loading)
    for epoch in range(6):
        alone.set_epoch(epoch)
        assert module.seen[epoch] == list(alone)


def test_infobatchs_epochs_differ_in_length(fit: Callable[..., Any]) -> None:
    module = Module(infobatch())
    fit(module, 8)
    sizes = [len(module.seen[epoch]) for epoch in range(8)]
    assert sizes[0] == sizes[7] == 40
    assert all(20 <= size < 40 for size in sizes[1:7])


@pytest.mark.slow
@pytest.mark.parametrize("make", [random, stale, infobatch])
@pytest.mark.parametrize("loading", [{}, {"num_workers": 1}])
def test_a_checkpoint_goes_on_in_the_same_order(
    fit: Callable[..., Any],
    tmp_path: Path,
    make: Callable[[], EpochSampler],
    loading: dict[str, Any],
) -> None:
    whole = Module(make())
    fit(whole, 8, **loading)
    trainer = fit(Module(make()), 5, **loading)
    trainer.save_checkpoint(tmp_path / "five.ckpt")
    again = Module(make())
    fit(again, 8, resume=tmp_path / "five.ckpt", **loading)
    assert again.seen == {epoch: whole.seen[epoch] for epoch in (5, 6, 7)}
    assert torch.equal(again.net.weight, whole.net.weight)


def test_settings_that_would_cut_epochs_short_are_refused(fit: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs=1"):
        fit(Module(infobatch()), 8, reloaded=0)
