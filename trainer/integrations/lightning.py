"""Lightning integration: re-selection and redrawing as callbacks.

    from lipt.trainer.integrations.lightning import ReselectionCallback

    sampler = ReselectingSampler(client, module.net, "craig", fraction=0.1, every=20)
    loader = DataLoader(data, batch_size=256, sampler=sampler)
    Trainer(max_epochs=200, callbacks=[ReselectionCallback(sampler)]).fit(module, loader)

`WeightingCallback` is for a `SubsetSampler`, whose subset stays: the loss counts each example by
its weight, as under `ReselectionCallback`. `RedrawingCallback` is for a sampler that redraws.

On several devices, give the sampler `rank`, `num_ranks` and `uneven="drop"`, and the Trainer
`use_distributed_sampler=False`: Lightning's own wrapper does not follow a subset's size.
"""

from __future__ import annotations

from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.integrations.weighting import Weighting, dataloader_batch_size
from lipt.trainer.resampling.samplers import EpochSampler, InfoBatchSampler
from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler

_Callback: Any = import_extra(
    "lightning.pytorch", package="lightning", extra="lightning", needed_for="ReselectionCallback"
).Callback

_KEY = "lipt_reselection"
_REDRAWING_KEY = "lipt_redrawing"


class WeightingCallback(_Callback):  # type: ignore[misc]
    """Lets each example's loss count as much as its subset says, and says so.

    In `training_step`, losses of torch.nn.functional and modules that use them are weighed
    example by example, where the subset has weights.

    Args:
        sampler: the training DataLoader's.
    """

    def __init__(self, sampler: SubsetSampler) -> None:
        super().__init__()
        self._weighting = Weighting(sampler)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Have the module's training step weighed."""
        pl_module.training_step = self._weighting.step(
            pl_module.training_step, lambda: dataloader_batch_size(trainer.train_dataloader)
        )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the module its own training step back."""
        vars(pl_module).pop("training_step", None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give it back after an error, too."""
        self.on_fit_end(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the first of the sampler's batches."""
        self._weighting.begin()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the next batch's weights."""
        self._weighting.next_batch()


class ReselectionCallback(WeightingCallback):
    """Takes a sampler from epoch to epoch, and through checkpoints; weighs as above.

    Logs `subset_waited_seconds`: how long training has stood still for subsets, in all.

    Args:
        sampler: the training DataLoader's.
    """

    def __init__(self, sampler: ReselectingSampler) -> None:
        super().__init__(sampler)
        self._sampler = sampler

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Ask for a subset where one is due.

        Raises:
            LiptError: as `Reselection.before_epoch`.
        """
        super().on_train_epoch_start(trainer, pl_module)
        self._set_num_epochs(trainer)
        self._sampler.set_epoch(trainer.current_epoch)
        waited = self._sampler.reselection.waited_seconds
        self.log("subset_waited_seconds", waited, rank_zero_only=True)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the subset, and the epoch that training would go on with."""
        following = trainer.fit_loop.epoch_progress.current.processed
        checkpoint[_KEY] = {"following": following, "sampler": self._sampler.state_dict()}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Go on with the checkpoint's subset, or the next one where it is due by now.

        Lightning starts the loader's workers on the first epoch before it sets the sampler's
        epoch, so that is done here; the model has the checkpoint's weights already.
        """
        saved = checkpoint.get(_KEY)
        if saved is not None:
            self._sampler.load_state_dict(saved["sampler"])
            self._set_num_epochs(trainer)
            self._sampler.set_epoch(saved["following"])

    def _set_num_epochs(self, trainer: Any) -> None:
        # -1 where steps or time are what ends training.
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            self._sampler.reselection.num_epochs = trainer.max_epochs


class RedrawingCallback(_Callback):  # type: ignore[misc]
    """Takes a sampler that redraws from epoch to epoch, and through checkpoints.

    Args:
        sampler: the training DataLoader's.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        super().__init__()
        self._sampler = sampler

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse settings under which epochs would be cut short.

        Raises:
            ConfigError: epochs differ in length, and Lightning would go by the first one's.
        """
        reloaded = trainer.reload_dataloaders_every_n_epochs
        if isinstance(self._sampler, InfoBatchSampler) and reloaded != 1:
            raise ConfigError(
                f"reload_dataloaders_every_n_epochs is {reloaded}, so Lightning would cut "
                "InfoBatch's epochs to the length of the one that it begins with. Give the "
                "Trainer reload_dataloaders_every_n_epochs=1."
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the next epoch's examples, by the losses of all ranks.

        Now, as Lightning asks for an epoch's length, and starts workers that it reloads, before
        it sets the sampler's epoch; and as a checkpoint of one rank is to have all losses.
        """
        self._sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the sampler's state, and the epoch that training would go on with."""
        following = trainer.fit_loop.epoch_progress.current.processed
        checkpoint[_REDRAWING_KEY] = {"following": following, "sampler": self._sampler.state_dict()}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Go on with the checkpoint's losses, in the order of the epoch that follows.

        Lightning starts the loader's workers before it sets the sampler's epoch.
        """
        saved = checkpoint.get(_REDRAWING_KEY)
        if saved is not None:
            self._sampler.load_state_dict(saved["sampler"])
            self._sampler.set_epoch(saved["following"])
