"""Hugging Face integration: subsets and re-selection under `transformers.Trainer`.

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

from lipt.common.errors import ConfigError
from lipt.common.imports.extras import import_extra
from lipt.trainer.reselection.reselection import ReselectionWarning
from lipt.trainer.reselection.samplers import ReselectingSampler, SubsetSampler
from lipt.trainer.writing.files import write_atomically

_TrainerCallback: Any = import_extra(
    "transformers", package="transformers", extra="huggingface", needed_for="train_on"
).TrainerCallback

_FILE = "lipt-reselection.json"


def train_on(trainer: Any, sampler: SubsetSampler) -> None:
    """Let a `transformers.Trainer` draw its training examples from a sampler.

    Args:
        trainer: of any subclass, before `train()`; its `train_dataset` is the whole data set.
        sampler: which examples, and in which order. One that re-selects is taken from epoch
            to epoch, and through the Trainer's checkpoints.

    Raises:
        ConfigError: the sampler is that of one rank among several.
    """
    if sampler.num_ranks != 1:
        raise ConfigError(
            f"the sampler is dealt out among {sampler.num_ranks} ranks, and accelerate would deal "
            "out the rest once more. Make it without rank and num_ranks."
        )
    # What Trainer's own subclasses override to sample in another way.
    trainer._get_train_sampler = lambda *_: sampler  # noqa: SLF001
    if isinstance(sampler, ReselectingSampler):
        trainer.add_callback(ReselectionCallback(sampler))


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
        # Epochs are counted in fractions, which may fall short of a whole one by rounding.
        self._epoch = int((state.epoch or 0.0) + 1e-6)
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


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
