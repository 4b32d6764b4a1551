"""Warm-ups: models trained on all data, their signals and trajectories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_seed, pinned_kernels
from lipt.common.inputs.specs import InputFormat
from lipt.common.models.head import freeze
from lipt.core.results import CommittedLearner, Trajectories
from lipt.core.selection.warm_up_option import WarmUp
from lipt.core.sharding import draw_shards
from lipt.core.signals.compute import compute_signals, default_chunk_size, full_gradient_norms
from lipt.core.signals.dynamics import Dynamics, States, compute_dynamics
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.training import Warmed, num_warm_up_steps, warm_up
from lipt.core.workspace import Workspace

# A model's signals: what a run's model, whatever its weights, makes of all examples.

# A run's model with some weights, on the workspace's device, over all examples.
ComputeSignals = Callable[[Workspace, RunConfig, InputFormat, nn.Module], Signals]


def model_signals(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """Errors and features, by one forward pass over the data."""
    with pinned_kernels(config.evaluation_threads):
        batches = workspace.batches(inputs, "computing signals")
        return compute_signals(model, batches, scratch=workspace.scratch)


def model_norms(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """The norms of all parameters' gradients, besides the labels; a backward pass per example."""
    chunks = workspace.batches(
        inputs,
        "computing per-example gradients",
        size=default_chunk_size(model, workspace.device),
    )
    norms_N = full_gradient_norms(model, chunks, cpu_threads=config.evaluation_threads)
    alone = labels_only(workspace.dataset.labels_N, workspace.dataset.target.kind)
    return replace(alone, gradient_norms_N=norms_N)


# Learner trajectories: how a run's learners came to see every example, computed once.
#
# Pruning is no step of training: a learner that left snapshots, the last of which is its state
# before pruning, is looked at in these; one that left none in its result.
#
# Shapes: N examples.


def dynamics_of(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    trajectories: Trajectories,
) -> Dynamics:
    """How the learners came to see every example of the data set."""
    soup = config.soup
    statistics = (soup.batch_norm_examples, config.validation, config.seed)
    depends_on = (
        trajectories,
        # What shards are drawn by, besides the fingerprint.
        (config.seed, config.validation, config.learners),
        workspace.dataset.fingerprint,
        config.model,
        inputs,
        config.evaluation_threads,
        str(workspace.device),
        statistics if soup.reestimate_batch_norm else None,
    )

    def compute() -> Dynamics:
        model = workspace.new_model(config)
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        states = States(
            initial=partial(workspace.read_weights, trajectories.initial_weights, model),
            learners=tuple(
                tuple(partial(read, name) for name in states_of(learner))
                for learner in trajectories.learners
            ),
        )
        with pinned_kernels(config.evaluation_threads):
            return compute_dynamics(
                model,
                states,
                workspace.batches(inputs, "asking the learners"),
                own_learner_N=own_learners(workspace, config, trajectories),
                batch_norm_examples_M=workspace.batch_norm_examples(config),
                frozen=workspace.frozen(config, model),
            )

    return workspace.cached("dynamics", depends_on, load=Dynamics.load, compute=compute)


def own_learners(workspace: Workspace, config: RunConfig, trajectories: Trajectories) -> Tensor:
    """Of every example the place among the learners of the one that was trained on it, or -1.

    Shards are drawn again: they follow from the run's seed and configuration and the data's labels.
    """
    own_learner_N = torch.full((len(workspace.dataset),), -1, dtype=torch.int16)
    drawn = draw_shards(workspace.split(config).train_ids, config.learners, seed=config.seed)
    for place, learner in enumerate(trajectories.learners):
        own_learner_N[drawn[learner.index]] = place
    return own_learner_N


def states_of(learner: CommittedLearner) -> tuple[BlobName, ...]:
    """The states that a learner is looked at in, in the order of training."""
    return learner.snapshots or (learner.result,)


# Warming up: the models of an ordinary warm-up, one after another, each kept once it is there.
#
# A warm-up is kept at the end of every epoch, so that a coordinator that was killed goes on from
# there. What it has taken is kept with it: it is the same for all who choose by it later.


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
    """Train what is not kept, and look at the data with each model in turn."""
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
    config = question.config
    if index == 0:
        model = workspace.loaded_model(config, question.initial)
    else:
        model = workspace.new_model(config, derive_seed(config.seed, "warm-up model", index))
    model.train()
    freeze(model, workspace.frozen(config, model))
    return model


def _depends_on(workspace: Workspace, question: WarmUpQuestion, index: int) -> tuple[object, ...]:
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
