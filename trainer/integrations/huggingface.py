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
from lipt.trainer.reselection.reselection import ReselectionWarning
from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler
from lipt.trainer.writing.files import replacing, write_atomically

_TrainerCallback: Any = import_extra(
    "transformers", package="transformers", extra="huggingface", needed_for="train_on"
).TrainerCallback

_FILE = "lipt-reselection.json"
_REDRAWING_FILE = "lipt-redrawing.pt"


class RedrawingWarning(UserWarning):
    """A checkpoint has not what a sampler knew; training goes on without it."""


def train_on(trainer: Any, sampler: SubsetSampler | EpochSampler) -> None:
    """Let a `transformers.Trainer` draw its training examples from a sampler.

    Args:
        trainer: of any subclass, before `train()`; its `train_dataset` is the whole data set.
        sampler: which examples, and in which order. One that re-selects or redraws is taken
            from epoch to epoch, and through the Trainer's checkpoints. Where its subset has
            weights, each example's loss counts as much as its own, which is said.

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
    # What Trainer's own subclasses override to sample in another way.
    trainer._get_train_sampler = lambda *_: sampler  # noqa: SLF001
    reselects = isinstance(sampler, ReselectingSampler)
    if isinstance(sampler, SubsetSampler) and (reselects or sampler.subset.is_weighted):
        trainer.add_callback(WeightingCallback(trainer, sampler))
    if isinstance(sampler, ReselectingSampler):
        trainer.add_callback(ReselectionCallback(sampler))
    elif isinstance(sampler, EpochSampler):
        trainer.add_callback(RedrawingCallback(sampler))


class WeightingCallback(_TrainerCallback):  # type: ignore[misc]
    """Lets each example's loss count as much as its subset says; `train_on` adds it.

    Losses of torch.nn.functional, and of models that use them, are weighed in `compute_loss`.
    Not on several processes, where batches are dealt out: that warns.

    Args:
        trainer: whose training it is.
        sampler: what it draws its examples from.
    """

    def __init__(self, trainer: Any, sampler: SubsetSampler) -> None:
        self._weighting = weighting = Weighting(sampler)
        arguments: Any = trainer.args
        plain: Any = trainer.compute_loss
        alone = arguments.world_size == 1
        weighted = weighting.step(plain, lambda: arguments.train_batch_size if alone else None)

        def compute_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not model.training:  # a batch of an evaluation is none of the sampler's
                return plain(model, *args, **kwargs)
            weighting.next_batch()
            return weighted(model, *args, **kwargs)

        trainer.compute_loss = compute_loss
        self._sampler = sampler
        self._skipped = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find how much of its epoch a checkpoint has behind it."""
        done = (state.epoch or 0.0) - _epochs_done(state)
        self._skipped = 0.0 if args.ignore_data_skip else max(0.0, done)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin with the sampler's first batch, or the one that training goes on with."""
        num_batches = -(-len(self._sampler) // args.train_batch_size)
        self._weighting.begin(round(self._skipped * num_batches))
        self._skipped = 0.0


class ReselectionCallback(_TrainerCallback):  # type: ignore[misc]
    """Takes a sampler from epoch to epoch, and through checkpoints; `train_on` adds it.

    Args:
        sampler: what the Trainer draws its training examples from.
    """

    def __init__(self, sampler: ReselectingSampler) -> None:
        self._sampler = sampler
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the epoch to begin with, and its subset where training goes on."""
        self._epoch = _epochs_done(state)
        self._sampler.reselection.num_epochs = state.num_train_epochs
        if not state.global_step:
            return
        path = _checkpoint(args, state) / _FILE
        if path.is_file():
            self._sampler.load_state_dict(json.loads(path.read_text(encoding="utf-8")))
        else:
            warnings.warn(
                f"{path} is missing, so training goes on with the sampler's present subset of "
                f"{len(self._sampler.subset)} examples and not with the checkpoint's.",
                ReselectionWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for a subset where one is due.

        Raises:
            LiptError: as `Reselection.before_epoch`.
        """
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the subset beside the checkpoint's other files."""
        if state.is_world_process_zero:
            text = json.dumps(self._sampler.state_dict())
            write_atomically(_checkpoint(args, state) / _FILE, text.encode())


class RedrawingCallback(_TrainerCallback):  # type: ignore[misc]
    """Takes a sampler that redraws from epoch to epoch, and through checkpoints.

    `train_on` adds it.

    Args:
        sampler: what the Trainer draws its training examples from.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the epoch to begin with, and what was known then where training goes on."""
        self._epoch = _epochs_done(state)
        if not state.global_step:
            return
        path = _checkpoint(args, state) / _REDRAWING_FILE
        if path.is_file():
            self._sampler.load_state_dict(read_torch_file(path))
        else:
            warnings.warn(
                f"{path} is missing, so training goes on without the losses that the sampler knew.",
                RedrawingWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the epoch's examples."""
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell all ranks the epoch's losses, before a checkpoint of one of them is written."""
        if isinstance(self._sampler, LossSampler):
            self._sampler.gather()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the sampler's state beside the checkpoint's other files."""
        if state.is_world_process_zero:
            with replacing(_checkpoint(args, state) / _REDRAWING_FILE) as temporary:
                torch.save(self._sampler.state_dict(), temporary)


def _epochs_done(state: Any) -> int:
    # Epochs are counted in fractions, which may fall short of a whole one by rounding.
    return int((state.epoch or 0.0) + 1e-6)


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
