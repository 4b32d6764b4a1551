"""`fit`: a model, a subset and a recipe in, trained weights out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.determinism import derive_seed, pinned_kernels, seeded_generators, tried_kernels
from lipt.common.errors import ConfigError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.process.devices import resolve_device
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.specs import check_specs, specs_of
from lipt.trainer.main_training.checkpoints import Progress, load_checkpoint, require_same
from lipt.trainer.main_training.examples import (
    LossDriven,
    MakeSubsetSource,
    SubsetSource,
    require_comparable,
)
from lipt.trainer.main_training.forward import place_model
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.main_training.records import OnEpoch, OnStep, Trained
from lipt.trainer.main_training.schedule import Schedule
from lipt.trainer.main_training.training import Training
from lipt.trainer.subsets.subset import Subset


def fit(
    model: str | nn.Module,
    train: Dataset,
    *,
    subset: Subset | None = None,
    coreset: Subset | None = None,
    test: Dataset | None = None,
    recipe: Recipe | None = None,
    schedule: Schedule | None = None,
    device: str = "auto",
    initial: Mapping[str, Tensor] | None = None,
    checkpoint: Path | None = None,
    max_seconds: float | None = None,
    reselect: SubsetSource | MakeSubsetSource | None = None,
    on_epoch: Sequence[OnEpoch] = (),
    on_step: OnStep | None = None,
    on_resume: Callable[[Progress], object] = lambda _: None,
    allowed_modules: Collection[str] = (),
) -> Trained:
    """Train a model on a subset.

    Args:
        model: a name such as "resnet18", built with the recipe's seed, or a module, which
            is trained in place.
        train: the data set that the subset was chosen from.
        subset: the examples; where None those that `reselect` begins with, or all of `train`.
        coreset: examples that are trained on once more as copies, which alone are augmented by the
            recipe's `coreset_augmentation`: those that need a strong one.
        test: for the accuracy; never trained on.
        recipe: how to train.
        schedule: when to evaluate and to write checkpoints.
        device: "auto", "cpu", "cuda" or "cuda:N".
        initial: weights to begin with, such as theta* or theta_p.
        checkpoint: a file to write, and to go on from where it is there.
        max_seconds: how long this call may take, for training in pieces: it ends by
            `TrainingPaused` after the last epoch that is done by then, taking the next one to
            last as long as the one before. At least one epoch is trained.
        reselect: asked before every epoch for its subset, such as a `RedrawnRandom` or a
            `Reselection`; or a function that makes one of the model in training and the first
            subset, which is None where it is to be asked for:
            `lambda model, first: Reselection(client, model, "craig", fraction=0.1, first=first)`.
        on_epoch: each is called with every epoch's record.
        on_step: called after every optimizer step with (steps done, steps in all). It must
            not wait for the device.
        on_resume: called with how far training has come before it goes on from `checkpoint`.
        allowed_modules: modules that `model` may be imported from.

    Returns:
        The final weights, and how training went.

    Raises:
        SubsetError: a subset is empty, or belongs to other data.
        DataError: the test set has other images or classes than `train`; RandAugment is given
            images that are not bytes with 1 or 3 channels.
        ConfigError: labels are to be smoothed and there are numbers; a coreset is to be augmented
            and there are no images, or `reselect` goes by losses; the checkpoint is another
            training's, or the device does not exist; there is a limit of time without a checkpoint.
        TrainingPaused: the time is up, and the checkpoint is written.
        TrainingDivergedError: the loss is no longer finite.
        WeightsError: `initial` is another model's.
    """
    ends_at = _end(max_seconds, checkpoint)
    recipe, schedule, place = recipe or Recipe(), schedule or Schedule(), resolve_device(device)
    if test is not None:
        require_comparable(test, train)
    _require_fitting(recipe, train, coreset)
    built, forward_pass = place_model(model, train, recipe, place, allowed_modules)
    identity = {
        "recipe": recipe.model_dump(mode="json"),
        "model": model if isinstance(model, str) else type(model).__name__,
        "data": train.fingerprint,
        "subset": "" if subset is None else subset.digest,
        "coreset": "" if coreset is None else coreset.digest,
        "re-selection": reselect is not None,
    }
    with ExitStack() as stack:
        stack.enter_context(seeded_generators(derive_seed(recipe.seed, "main-layers"), place))
        on_cpu = place.type == "cpu"
        kernels = pinned_kernels(torch.get_num_threads()) if on_cpu else tried_kernels()
        stack.enter_context(kernels)
        if initial is not None:
            check_specs(specs_of(initial), specs_of(built.state_dict()))
            built.load_state_dict(initial)
        saved = None
        if checkpoint is not None and checkpoint.is_file():
            saved = load_checkpoint(checkpoint, built, identity)
            subset = saved.subset
        source = reselect(built, subset) if callable(reselect) else reselect
        if source is not None:
            identity["selection"] = dict(source.identity)
            if checkpoint is not None and saved is not None and subset is not None:
                require_same(checkpoint, saved.identity, identity)
                source.subset = subset
                if isinstance(source, LossDriven):
                    source.load_state_dict(saved.source)
            subset = source.subset if subset is None else subset
        budget = _budget(source, coreset)
        training = Training(
            built, forward_pass, train, test, recipe, schedule, subset, budget, coreset
        )
        if saved is not None:
            training.restore(saved)
            on_resume(saved.progress)
        told = on_step or (lambda *_: None)
        return training.run(source, on_epoch, told, checkpoint, identity, ends_at)


def _require_fitting(recipe: Recipe, train: Dataset, coreset: Subset | None) -> None:
    if recipe.label_smoothing and train.target.kind is TargetKind.NUMBER:
        raise ConfigError(
            f"label_smoothing = {recipe.label_smoothing}: of numbers there is nothing to spread "
            f"over classes, and {train.source} is regression. Leave it at 0."
        )
    if coreset is not None and not isinstance(train.inputs, ImageSpec):
        raise ConfigError(
            f"{train.source} has {train.inputs}, and only images are augmented. Leave out the "
            "coreset."
        )


def _budget(source: SubsetSource | None, coreset: Subset | None) -> int | None:
    """How many examples decide the number of steps, where a source says it."""
    if not isinstance(source, LossDriven):
        return None
    if coreset is not None:
        raise ConfigError(
            "examples are drawn by their losses, and a coreset's copies have losses of their "
            "own. Leave out the coreset, or draw them in another way."
        )
    return source.budget


def _end(max_seconds: float | None, checkpoint: Path | None) -> float:
    """The moment by which the call has to end, on the monotonic clock."""
    if max_seconds is None:
        return math.inf
    if checkpoint is None:
        raise ConfigError(
            f"training may take {max_seconds:g} s and has no checkpoint, so all of it would be "
            "lost then. Name a file for a checkpoint, or give no limit."
        )
    return monotonic() + max_seconds
