"""`fit`: a model, a subset and a recipe in, trained weights out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.determinism import pinned_kernels, seeded_generators
from lipt.common.devices import resolve_device
from lipt.common.seeding import derive_seed
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.main_training.records import OnEpoch, OnStep
from lipt.trainer.main_training.training import Schedule, SubsetSource, Trained, Training
from lipt.trainer.subset import Subset


def fit(
    model: str | nn.Module,
    train: Dataset,
    *,
    subset: Subset | None = None,
    test: Dataset | None = None,
    recipe: Recipe | None = None,
    schedule: Schedule | None = None,
    device: str = "auto",
    initial: Mapping[str, Tensor] | None = None,
    checkpoint: Path | None = None,
    reselect: SubsetSource | None = None,
    on_epoch: Sequence[OnEpoch] = (),
    on_step: OnStep | None = None,
    allowed_modules: Collection[str] = (),
) -> Trained:
    """Train a model on a subset.

    Args:
        model: a name such as "resnet18", built with the recipe's seed, or a module, which
            is trained in place.
        train: the data set that the subset was chosen from.
        subset: the examples; all of `train` where None.
        test: for the accuracy; never trained on.
        recipe: how to train.
        schedule: when to evaluate and to write checkpoints.
        device: "auto", "cpu", "cuda" or "cuda:N".
        initial: weights to begin with, such as theta* or theta_p.
        checkpoint: a file to write, and to go on from where it is there.
        reselect: asked before every epoch for its subset, such as a `Reselection`.
        on_epoch: each is called with every epoch's record.
        on_step: called after every optimizer step with (steps done, steps in all). It must
            not wait for the device.
        allowed_modules: modules that `model` may be imported from.

    Returns:
        The final weights, and how training went.

    Raises:
        SubsetError: the subset is empty, or belongs to other data.
        ConfigError: the checkpoint is another training's, the device does not exist, or
            the loss is no longer finite.
        WeightsError: `initial` is another model's.
    """
    recipe, schedule = recipe or Recipe(), schedule or Schedule()
    training = Training(
        model, train, subset, test, recipe, schedule, resolve_device(device), allowed_modules
    )
    with ExitStack() as stack:
        stack.enter_context(
            seeded_generators(derive_seed(recipe.seed, "main-layers"), training.device)
        )
        if training.device.type == "cpu":
            stack.enter_context(pinned_kernels(torch.get_num_threads()))
        return training.run(initial, checkpoint, reselect, on_epoch, on_step or _ignore)


def _ignore(_step: int, _num_steps: int) -> None:
    pass
