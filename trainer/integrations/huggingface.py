"""Hugging Face integration: subsets, re-selection and resampling in `transformers.Trainer`.

    trainer = Trainer(model, arguments, train_dataset=data)
    train_on(trainer, ReselectingSampler(client, model, "craig", fraction=0.1))
    trainer.train()

With accelerate alone, prepare a DataLoader with the sampler, and call `sampler.set_epoch(epoch)`
before each epoch. In both cases use a single-process sampler: accelerate shards its batches.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.models.checkpoints import read_torch_file
from lipt.trainer.files import replacing
from lipt.trainer.integrations.weighting import Weighting
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import RepeatedRandomSampler, SubsetSampler

_TrainerCallback: Any = import_extra(
    "transformers", package="transformers", extra="huggingface", needed_for="train_on"
).TrainerCallback


class SamplerStateWarning(UserWarning):
    """A checkpoint lacks the sampler's state; training continues without it."""


def train_on(trainer: Any, sampler: SubsetSampler | RepeatedRandomSampler) -> None:
    """Let a `transformers.Trainer` draw its training examples from a sampler.

    With several processes losses stay unweighted, with a warning.

    Args:
        trainer: of any subclass, before `train()`; its `train_dataset` is the whole data set.
        sampler: follows the Trainer's epochs and checkpoints; its subset's weights multiply losses.

    Raises:
        ConfigError: the sampler has several ranks.
    """
    if sampler.num_ranks != 1:
        raise ConfigError(
            f"the sampler is dealt out among {sampler.num_ranks} ranks, and accelerate would deal "
            "out the rest once more. Make it without rank and num_ranks."
        )
    # Trainer's own subclasses override this method to change sampling.
    trainer._get_train_sampler = lambda *_: sampler  # noqa: SLF001
    trainer.add_callback(_EpochCallback(trainer, sampler))


class _EpochCallback(_TrainerCallback):  # type: ignore[misc]
    """Sets a sampler's epochs, saves its state, and weights the losses in `compute_loss`."""

    def __init__(self, trainer: Any, sampler: SubsetSampler | RepeatedRandomSampler) -> None:
        self._sampler, self._epoch, self._skipped = sampler, 0, 0.0
        self._weighting = _weighting_in(trainer, sampler)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the first epoch, and restore the sampler's state when training resumes."""
        done = state.epoch or 0.0
        # Epochs are fractions, and rounding may leave them slightly below a whole number.
        self._epoch = int(done + 1e-6)
        self._skipped = 0.0 if args.ignore_data_skip else max(0.0, done - self._epoch)
        sampler = self._sampler
        if isinstance(sampler, ReselectingSampler):
            sampler.reselection.num_epochs = state.num_train_epochs
        if not state.global_step:
            return
        path = _path(args, state)
        if path.is_file():
            sampler.load_state_dict(read_torch_file(path))
        else:
            warnings.warn(
                f"{path} is missing, so training goes on without the sampler's subset.",
                SamplerStateWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the epoch's examples, and request a subset if one is due."""
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        num_batches = -(-len(self._sampler) // args.train_batch_size)
        self._weighting.begin(round(self._skipped * num_batches))
        self._skipped = 0.0

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            with replacing(_path(args, state)) as temporary:
                torch.save(self._sampler.state_dict(), temporary)


def _weighting_in(trainer: Any, sampler: SubsetSampler | RepeatedRandomSampler) -> Weighting:
    weighting, plain, arguments = Weighting(sampler), trainer.compute_loss, trainer.args
    alone = arguments.world_size == 1
    weighted = weighting.step(plain, lambda: arguments.train_batch_size if alone else None)

    def compute_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:  # an evaluation's batch
            return plain(model, *args, **kwargs)
        weighting.next_batch()
        return weighted(model, *args, **kwargs)

    trainer.compute_loss = compute_loss
    return weighting


def _path(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "lipt-sampler.pt"
