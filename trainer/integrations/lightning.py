"""Lightning integration: subsets, re-selection and resampling with one callback.

    sampler = ReselectingSampler(client, module.net, "craig", fraction=0.1, every=20)
    loader = DataLoader(data, batch_size=256, sampler=sampler)
    Trainer(max_epochs=200, callbacks=[SamplerCallback(sampler)]).fit(module, loader)

On several devices, give the sampler `rank`, `num_ranks` and `uneven="drop"`, and the Trainer
`use_distributed_sampler=False`: Lightning's own wrapper ignores changes of the subset's size.
"""

from __future__ import annotations

from typing import Any

from lipt.common.imports import import_extra
from lipt.trainer.integrations.weighting import Weighting
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import RankSampler

_Callback: Any = import_extra(
    "lightning.pytorch", package="lightning", extra="lightning", needed_for="SamplerCallback"
).Callback


class SamplerCallback(_Callback):  # type: ignore[misc]
    """Sets a sampler's epochs, saves its state, and weights the losses in `training_step`.

    `sampler` is the training DataLoader's. With a `ReselectingSampler` it logs
    `subset_waited_seconds`, the time that training has waited for subsets.
    """

    def __init__(self, sampler: RankSampler) -> None:
        super().__init__()
        self._sampler = sampler
        self._weighting = Weighting(sampler)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        def batch_size() -> int | None:
            # Known only for a DataLoader that makes its own batches.
            size = getattr(trainer.train_dataloader, "batch_size", None)
            return size if isinstance(size, int) and not isinstance(size, bool) else None

        pl_module.training_step = self._weighting.step(pl_module.training_step, batch_size)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        vars(pl_module).pop("training_step", None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_fit_end(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Request a subset if one is due; raises as `Reselection.before_epoch`."""
        self._weighting.begin()
        self._set_epoch(trainer, trainer.current_epoch)
        if isinstance(self._sampler, ReselectingSampler):
            waited = self._sampler.reselection.waited_seconds
            self.log("subset_waited_seconds", waited, rank_zero_only=True)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._weighting.next_batch()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        next_epoch = int(trainer.fit_loop.epoch_progress.current.processed)
        saved = {"next_epoch": next_epoch, "sampler": self._sampler.state_dict()}
        checkpoint["lipt_sampler"] = saved

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Restore the sampler's state and epoch, before Lightning starts the loader's workers."""
        saved = checkpoint.get("lipt_sampler")
        if saved is not None:
            self._sampler.load_state_dict(saved["sampler"])
            self._set_epoch(trainer, saved["next_epoch"])

    def _set_epoch(self, trainer: Any, epoch: int) -> None:
        # max_epochs is -1 where steps or time end training.
        known = trainer.max_epochs is not None and trainer.max_epochs >= 0
        if known and isinstance(self._sampler, ReselectingSampler):
            self._sampler.reselection.num_epochs = trainer.max_epochs
        self._sampler.set_epoch(epoch)
