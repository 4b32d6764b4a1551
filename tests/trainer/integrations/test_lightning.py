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
from lipt.trainer import InfoBatchSampler, ReselectingSampler, with_ids
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
    pl: Any = pytest.importorskip(
        "lightning.pytorch", reason="the extra 'lightning' is not installed"
    )

from lipt.trainer.integrations.lightning import SamplerCallback

# Lightning's advice on loggers, workers and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):  # type: ignore[misc]
    """Tells a sampler its losses where that wants them, and notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.net: nn.Module = seeded(lambda: nn.Linear(3, 1))
        self.seen: dict[int, list[int]] = {}
        self.waited: list[float] = []
        self.sampler: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids_B, (images_BD,) = batch
        self.seen.setdefault(self.current_epoch, []).extend(ids_B.tolist())
        losses_B = (self.net(images_BD).squeeze(-1) - ids_B % 7).square()
        if isinstance(self.sampler, LossSampler):
            self.sampler.update(ids_B, losses_B)
        if isinstance(self.sampler, InfoBatchSampler):
            losses_B = losses_B * self.sampler.weights(ids_B)
        return losses_B.mean()

    def on_train_epoch_end(self) -> None:
        self.waited.append(float(self.trainer.callback_metrics.get("subset_waited_seconds", 0)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-5)

    def shown(self, number: int) -> list[int]:
        """The epochs with the subset of that number."""
        return [epoch for epoch, seen in self.seen.items() if sorted(seen) == numbers(number)]


@pytest.fixture
def fit(tmp_path: Path, make_sampler: Callable[..., ReselectingSampler]) -> Callable[..., Any]:
    """Trains a module with a sampler, made of it where none is given."""

    def run(
        module: Module,
        epochs: int,
        sampler: Any = None,
        *,
        every: int = 2,
        resume: Path | None = None,
        reloaded: int = 0,
        **loading: Any,
    ) -> Any:
        module.sampler = sampler or make_sampler(module.net, every=every)
        images_ND = torch.arange(NUM_EXAMPLES, dtype=torch.float32).repeat(3, 1).T.contiguous()
        data = with_ids(TensorDataset(images_ND))
        loader: Any = DataLoader(data, batch_size=4, sampler=module.sampler, **loading)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[SamplerCallback(module.sampler)],
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=reloaded,
        )
        trainer.fit(module, loader, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return trainer

    return run


WORKERS = [{}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("loading", WORKERS)
def test_every_epoch_is_shown_the_subset_of_its_time(
    fake_client: FakeClient, fit: Callable[..., Any], loading: dict[str, Any]
) -> None:
    module = Module()
    fit(module, 5, **loading)
    assert [module.shown(number) for number in range(3)] == [[0, 1], [2, 3], [4]]
    assert module.seen[0] != module.seen[1]  # the same examples in another order
    assert len(fake_client.asked) == 3
    assert module.waited[0] == 0.0 < module.waited[2]


@pytest.mark.parametrize("loading", WORKERS)
def test_every_epoch_is_shown_what_its_sampler_draws(
    fit: Callable[..., Any], loading: dict[str, Any]
) -> None:
    module, alone = Module(), random()
    fit(module, 6, random(), **loading)
    for epoch in range(6):
        alone.set_epoch(epoch)
        assert module.seen[epoch] == list(alone)


@pytest.mark.parametrize("loading", [{}, {"num_workers": 1}])
def test_a_checkpoint_goes_on_with_its_subset(
    fake_client: FakeClient, fit: Callable[..., Any], tmp_path: Path, loading: dict[str, Any]
) -> None:
    whole = Module()
    fit(whole, 7, every=3, **loading)
    fake_client.asked.clear()
    fit(Module(), 5, every=3, **loading)
    asked = len(fake_client.asked)
    second = Module()
    # This one's own first subset, number 2, is not that of the checkpoint.
    fit(second, 7, every=3, resume=tmp_path / "last.ckpt", **loading)
    # Epoch 5 goes on with the subset of epoch 3, and at 6 one is due.
    assert second.seen[5] == whole.seen[5]
    assert (second.shown(1), second.shown(3)) == ([5], [6])
    assert len(fake_client.asked) == asked + 2
    assert fake_client.asked[-1]["previous"] == subset_of(1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [random, stale, infobatch])
@pytest.mark.parametrize("loading", [{}, {"num_workers": 1}])
def test_a_checkpoint_goes_on_in_the_same_order(
    fit: Callable[..., Any],
    tmp_path: Path,
    make: Callable[[], EpochSampler],
    loading: dict[str, Any],
) -> None:
    whole = Module()
    fit(whole, 8, make(), reloaded=1, **loading)
    if make is infobatch:
        sizes = [len(whole.seen[epoch]) for epoch in range(8)]
        assert sizes[0] == sizes[7] == 40
        assert all(20 <= size < 40 for size in sizes[1:7])
    fit(Module(), 5, make(), reloaded=1, **loading)
    again = Module()
    fit(again, 8, make(), reloaded=1, resume=tmp_path / "last.ckpt", **loading)
    assert again.seen == {epoch: whole.seen[epoch] for epoch in (5, 6, 7)}
    torch.testing.assert_close(again.net.state_dict(), whole.net.state_dict())


def test_what_no_epoch_would_use_is_not_asked_for(
    make_sampler: Callable[..., ReselectingSampler],
    fake_client: FakeClient,
    fit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    module = Module()
    sampler = make_sampler(module.net, prefetch=True)
    fit(module, 4, sampler)
    sampler.reselection._executor.shutdown()
    assert len(fake_client.asked) == 2
    # A finished training, too, announces the epoch that would follow.
    again = Module()
    fit(again, 4, make_sampler(again.net, first=subset_of(5)), resume=tmp_path / "last.ckpt")
    assert not again.seen
    assert len(fake_client.asked) == 2


def test_settings_that_would_cut_epochs_short_are_refused(fit: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs=1"):
        fit(Module(), 8, infobatch())
