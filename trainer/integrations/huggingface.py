"""Hugging Face integration: subsets, re-selection, redrawing under `transformers.Trainer`.

    from lipt.trainer.integrations.huggingface import train_on

    trainer = Trainer(model, arguments, train_dataset=data)
    train_on(trainer, ReselectingSampler(client, model, "craig", fraction=0.1))
    trainer.train()

With accelerate alone, prepare a DataLoader that has the sampler, and call
`sampler.set_epoch(epoch)` before each epoch. Either way the sampler is that of one process:
accelerate deals out its batches among all.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.common.weights.checkpoints import read_torch_file
from lipt.trainer.integrations.weighting import Weighting
from lipt.trainer.resampling.samplers import EpochSampler, InfoBatchSampler, LossSampler
from lipt.trainer.reselection.reselection import (
    ReselectingSampler,
    ReselectionWarning,
    SubsetSampler,
)
from lipt.trainer.writing.files import replacing, write_atomically

_TrainerCallback: Any = import_extra(
    "transformers", package="transformers", extra="huggingface", needed_for="train_on"
).TrainerCallback


class RedrawingWarning(UserWarning):
    """A checkpoint lacks a sampler's losses; training goes on without them."""


def train_on(trainer: Any, sampler: SubsetSampler | EpochSampler) -> None:
    """Let a `transformers.Trainer` draw its training examples from a sampler.

    Args:
        trainer: of any subclass, before `train()`; its `train_dataset` is the whole data set.
        sampler: one that re-selects or redraws follows the Trainer's epochs and checkpoints. Where
            its subset has weights, they multiply the examples' losses.

    Raises:
        ConfigError: the sampler is that of one rank among several, or its epochs differ in
            length.
    """
    if isinstance(sampler, InfoBatchSampler):
        raise ConfigError(
            "the Trainer counts an epoch's steps once, and InfoBatch's epochs differ in length. "
            "Take it in a loop of your own or under Lightning, or take a StaleLossSampler."
        )
    if sampler.num_ranks != 1:
        raise ConfigError(
            f"the sampler is dealt out among {sampler.num_ranks} ranks, and accelerate would deal "
            "out the rest once more. Make it without rank and num_ranks."
        )
    # Trainer's own subclasses override this method to sample in another way.
    trainer._get_train_sampler = lambda *_: sampler  # noqa: SLF001
    reselects = isinstance(sampler, ReselectingSampler)
    counts = isinstance(sampler, SubsetSampler) and (sampler.subset.is_weighted or sampler.alpha)
    if isinstance(sampler, SubsetSampler) and (reselects or counts):
        trainer.add_callback(WeightingCallback(trainer, sampler))
    if isinstance(sampler, ReselectingSampler | EpochSampler):
        trainer.add_callback(SamplerCallback(sampler))


class WeightingCallback(_TrainerCallback):  # type: ignore[misc]
    """Multiplies each example's loss in `compute_loss` by its weight; `train_on` adds it.

    On several processes, where batches are dealt out, it warns instead.
    """

    def __init__(self, trainer: Any, sampler: SubsetSampler) -> None:
        self._weighting = weighting = Weighting(sampler)
        arguments: Any = trainer.args
        plain: Any = trainer.compute_loss
        alone = arguments.world_size == 1
        weighted = weighting.step(plain, lambda: arguments.train_batch_size if alone else None)

        def compute_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not model.training:  # an evaluation's batch
                return plain(model, *args, **kwargs)
            weighting.next_batch()
            return weighted(model, *args, **kwargs)

        trainer.compute_loss = compute_loss
        self._sampler = sampler
        self._skipped = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the share of its epoch that a checkpoint has done."""
        done = (state.epoch or 0.0) - _epochs_done(state)
        self._skipped = 0.0 if args.ignore_data_skip else max(0.0, done)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin with the first batch, or the one after the checkpoint."""
        num_batches = -(-len(self._sampler) // args.train_batch_size)
        self._weighting.begin(round(self._skipped * num_batches))
        self._skipped = 0.0


class SamplerCallback(_TrainerCallback):  # type: ignore[misc]
    """Sets a sampler's epochs, and keeps its state in checkpoints; `train_on` adds it."""

    def __init__(self, sampler: ReselectingSampler | EpochSampler) -> None:
        self._sampler = sampler
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the first epoch, and load the checkpoint's state where training is resumed."""
        self._epoch = _epochs_done(state)
        sampler, path = self._sampler, self._path(args, state)
        if isinstance(sampler, ReselectingSampler):
            sampler.reselection.num_epochs = state.num_train_epochs
        if not state.global_step:
            return
        if not path.is_file():
            warning: type[UserWarning] = RedrawingWarning
            lost = "without the losses that the sampler knew"
            if isinstance(sampler, ReselectingSampler):
                warning = ReselectionWarning
                lost = f"with the sampler's present subset of {len(sampler.subset)} examples"
            warnings.warn(f"{path} is missing, so training goes on {lost}.", warning, stacklevel=2)
        elif isinstance(sampler, ReselectingSampler):
            sampler.load_state_dict(json.loads(path.read_text(encoding="utf-8")))
        else:
            sampler.load_state_dict(read_torch_file(path))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the epoch's examples, and ask for a subset where one is due."""
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exchange the epoch's losses among ranks, before one of them writes a checkpoint."""
        if isinstance(self._sampler, LossSampler):
            self._sampler.gather()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the sampler's state beside the checkpoint's other files."""
        if not state.is_world_process_zero:
            return
        path, saved = self._path(args, state), self._sampler.state_dict()
        if isinstance(self._sampler, ReselectingSampler):
            write_atomically(path, json.dumps(saved).encode())
        else:
            with replacing(path) as temporary:
                torch.save(saved, temporary)

    def _path(self, args: Any, state: Any) -> Path:
        reselects = isinstance(self._sampler, ReselectingSampler)
        name = "lipt-reselection.json" if reselects else "lipt-redrawing.pt"
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / name


def _epochs_done(state: Any) -> int:
    # Epochs are counted in fractions, which may fall short of a whole one by rounding.
    return int((state.epoch or 0.0) + 1e-6)
