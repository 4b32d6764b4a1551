"""Warming up: the models of an ordinary warm-up, one after another, each kept once it is there.

A warm-up is kept at the end of every epoch, so that a coordinator that was killed goes on from
there. What it has taken is kept with it: it is the same for all who choose by it later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.seeding import derive_seed
from lipt.common.inputs.formats import InputFormat
from lipt.common.models.freezing import freeze
from lipt.core.selection.warm_up_option import WarmUp
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.stages.model_signals import model_norms, model_signals
from lipt.core.warm_up import Warmed, num_warm_up_steps, warm_up
from lipt.core.workspace import Workspace


@dataclass(frozen=True)
class WarmUpQuestion:
    """An ordinary warm-up of a run's model.

    initial: theta*, where the first model begins; the others begin at random.
    """

    config: RunConfig
    inputs: InputFormat
    initial: BlobName
    warm_up: WarmUp


@dataclass(frozen=True)
class WarmedUp:
    """What the models make of the examples.

    signals: the first model's, with the others among them.
    seconds: that the training of all models took, whenever that was.
    spent_seconds: of these, those that this job has taken.
    """

    signals: Signals
    seconds: float
    spent_seconds: float


def warmed_up(
    workspace: Workspace, question: WarmUpQuestion, *, signals: bool, gradient_norms: bool
) -> WarmedUp:
    """Train what is not kept, and look at the data with each model in turn.

    Args:
        workspace: of the job.
        question: which models.
        signals: whether errors and features are needed.
        gradient_norms: whether the norms of all parameters' gradients are.

    Raises:
        SignalsError: a model has diverged.
    """
    found: list[Signals] = []
    seconds = spent_seconds = 0.0
    for index in range(question.warm_up.models):
        # One at a time: its weights go with it.
        model = _Model.made(workspace, question, index)
        seconds += model.warmed.seconds
        spent_seconds += model.spent_seconds
        found.append(model.signals(with_errors=signals, with_norms=gradient_norms))
    first, *others = found
    return WarmedUp(replace(first, others=tuple(others)), seconds, spent_seconds)


@dataclass(frozen=True)
class _Model:
    """One model of a warm-up, trained; `spent_seconds` of it just now."""

    workspace: Workspace
    question: WarmUpQuestion
    index: int
    warmed: Warmed
    spent_seconds: float

    @classmethod
    def made(cls, workspace: Workspace, question: WarmUpQuestion, index: int) -> _Model:
        depends_on = _depends_on(workspace, question, index)
        begun = workspace.find_warm_up(depends_on)
        train_ids = workspace.split(question.config).train_ids
        if begun is not None and begun.step >= num_warm_up_steps(
            question.warm_up.epochs, len(train_ids)
        ):
            return cls(workspace, question, index, begun, 0.0)

        def put(warmed: Warmed) -> None:
            workspace.keep_warm_up(depends_on, warmed, question.warm_up.models)

        config = question.config
        number = f" {index + 1} of {question.warm_up.models}" * (question.warm_up.models > 1)
        warmed = warm_up(
            _beginning(workspace, question, index),
            workspace.dataset,
            train_ids,
            question.warm_up.epochs,
            question.inputs,
            seed=derive_seed(config.seed, "warm-up", index),
            device=workspace.device,
            cpu_threads=config.learners.cpu_threads,
            begun=begun,
            on_progress=workspace.progress(f"warming up model{number}"),
            on_epoch=put,
        )
        put(warmed)
        before = 0.0 if begun is None else begun.seconds
        return cls(workspace, question, index, warmed, warmed.seconds - before)

    def signals(self, *, with_errors: bool, with_norms: bool) -> Signals:
        """What the model makes of the examples; of labels alone where nothing is needed."""
        dataset = self.workspace.dataset
        found = labels_only(dataset.labels_N, dataset.target.kind)
        if with_errors:
            found = self._cached("signals", model_signals)
        if with_norms:
            norms_N = self._cached("gradients", model_norms).gradient_norms_N
            found = replace(found, gradient_norms_N=norms_N)
        return found

    @cached_property
    def _evaluated(self) -> nn.Module:
        model = self.workspace.new_model(self.question.config)
        model.load_state_dict(self.warmed.weights)
        return model.eval()

    def _cached(
        self, kind: str, compute: Callable[[Workspace, RunConfig, InputFormat, nn.Module], Signals]
    ) -> Signals:
        workspace, config = self.workspace, self.question.config
        return workspace.cached(
            kind,
            (*_depends_on(workspace, self.question, self.index), config.evaluation_threads),
            load=Signals.load,
            compute=lambda: compute(workspace, config, self.question.inputs, self._evaluated),
            warm_up_models=self.question.warm_up.models,
        )


def _beginning(workspace: Workspace, question: WarmUpQuestion, index: int) -> nn.Module:
    """The run's model, in training mode, with the weights that warm-up `index` begins with."""
    config = question.config
    if index == 0:
        model = workspace.loaded_model(config, question.initial)
    else:
        model = workspace.new_model(config, derive_seed(config.seed, "warm-up model", index))
    model.train()
    freeze(model, workspace.frozen(config, model))
    return model


def _depends_on(workspace: Workspace, question: WarmUpQuestion, index: int) -> tuple[object, ...]:
    """All that the training of a model depends on."""
    config = question.config
    return (
        question.initial.sha256,
        workspace.dataset.fingerprint,
        config.seed,
        config.model,
        config.validation,
        config.learners.frozen,
        config.learners.cpu_threads,
        question.inputs,
        question.warm_up.epochs,
        index,
        str(workspace.device),
    )
