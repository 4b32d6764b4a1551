"""Lightning integration: re-selection and redrawing as callbacks.

    from lipt.trainer.integrations.lightning import ReselectionCallback

    sampler = ReselectingSampler(client, module.net, "craig", fraction=0.1, every=20)
    loader = DataLoader(data, batch_size=256, sampler=sampler)
    Trainer(max_epochs=200, callbacks=[ReselectionCallback(sampler)]).fit(module, loader)

`WeightingCallback` is for a `SubsetSampler`, `RedrawingCallback` for a sampler that redraws. On
several devices, give the sampler `rank`, `num_ranks` and `uneven="drop"`, and the Trainer
`use_distributed_sampler=False`: Lightning's own wrapper does not follow a subset's size.
"""

from __future__ import annotations

from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.integrations.weighting import Weighting
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import EpochSampler, InfoBatchSampler, SubsetSampler

_Callback: Any = import_extra(
    "lightning.pytorch", package="lightning", extra="lightning", needed_for="ReselectionCallback"
).Callback


class WeightingCallback(_Callback):  # type: ignore[misc]
    """Multiplies each example's loss in `training_step` by its weight in the sampler's subset."""

    def __init__(self, sampler: SubsetSampler) -> None:
        super().__init__()
        self._weighting = Weighting(sampler)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap the module's training step."""

        def batch_size() -> int | None:
            # Of a DataLoader that makes its batches itself.
            size = getattr(trainer.train_dataloader, "batch_size", None)
            return size if isinstance(size, int) and not isinstance(size, bool) else None

        pl_module.training_step = self._weighting.step(pl_module.training_step, batch_size)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore the module's own training step."""
        vars(pl_module).pop("training_step", None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore it after an error, too."""
        self.on_fit_end(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the sampler's first batch."""
        self._weighting.begin()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the next batch's weights."""
        self._weighting.next_batch()


class _Checkpointed(_Callback):  # type: ignore[misc]
    """Keeps a sampler's state and the next epoch's number in checkpoints."""

    key: str
    _sampler: Any

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the sampler's state."""
        following = trainer.fit_loop.epoch_progress.current.processed
        checkpoint[self.key] = {"following": following, "sampler": self._sampler.state_dict()}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Load the sampler's state, and set the next epoch.

        Lightning sets it only after it has started the loader's workers.
        """
        saved = checkpoint.get(self.key)
        if saved is not None:
            self._sampler.load_state_dict(saved["sampler"])
            self.set_epoch(trainer, saved["following"])

    def set_epoch(self, trainer: Any, epoch: int) -> None:
        """Set the sampler's epoch."""
        self._sampler.set_epoch(epoch)


class ReselectionCallback(_Checkpointed, WeightingCallback):
    """Sets a sampler's epochs, keeps it in checkpoints, and weighs losses.

    Logs `subset_waited_seconds`: how long training has waited for subsets.
    """

    key = "lipt_reselection"

    def __init__(self, sampler: ReselectingSampler) -> None:
        super().__init__(sampler)
        self._sampler = sampler

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Ask for a subset where one is due; raises as `Reselection.before_epoch`."""
        super().on_train_epoch_start(trainer, pl_module)
        self.set_epoch(trainer, trainer.current_epoch)
        waited = self._sampler.reselection.waited_seconds
        self.log("subset_waited_seconds", waited, rank_zero_only=True)

    def set_epoch(self, trainer: Any, epoch: int) -> None:
        """Set the sampler's epoch and the number of all epochs."""
        # -1 where steps or time end training.
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            self._sampler.reselection.num_epochs = trainer.max_epochs
        super().set_epoch(trainer, epoch)


class RedrawingCallback(_Checkpointed):
    """Sets a redrawing sampler's epochs, and keeps it in checkpoints."""

    key = "lipt_redrawing"

    def __init__(self, sampler: EpochSampler) -> None:
        super().__init__()
        self._sampler = sampler

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse settings under which epochs would be cut short."""
        reloaded = trainer.reload_dataloaders_every_n_epochs
        if isinstance(self._sampler, InfoBatchSampler) and reloaded != 1:
            raise ConfigError(
                f"reload_dataloaders_every_n_epochs is {reloaded}, so Lightning would cut "
                "InfoBatch's epochs to the length of its first one. Give the Trainer "
                "reload_dataloaders_every_n_epochs=1."
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the next epoch's examples, by the losses of all ranks.

        Lightning reads an epoch's length and starts reloaded workers before it sets the epoch.
        """
        self.set_epoch(trainer, trainer.fit_loop.epoch_progress.current.processed)
