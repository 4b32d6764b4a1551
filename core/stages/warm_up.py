"""Passes of models over all of the data: of theta_p, of the learners, and of warmed-up models.

An ordinary warm-up is stored after every epoch, so a killed coordinator resumes from there. Its
total seconds are stored too, for all later choices.

Shapes: N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_seed
from lipt.common.requests import WarmUp
from lipt.common.tensor_files import Weights
from lipt.core.kept_values import Key
from lipt.core.pretraining.initialization import WarmUpState, num_steps_of, warm_up
from lipt.core.pretraining.results import Trajectories
from lipt.core.signals.compute import (
    compute_values,
    default_chunk_size,
    full_gradient_norms,
    signals_from,
)
from lipt.core.signals.dynamics import Dynamics, States, compute_dynamics
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.signals.views import Need
from lipt.core.stages.resolve import PROXY_NEEDS, Sources
from lipt.core.tasks import ScoredValues
from lipt.core.workspace import Workspace
from lipt.data.inputs.specs import InputFormat
from lipt.models.head import freeze


@dataclass(frozen=True)
class ModelPass:
    """A pass of a run's model over all examples of the data, and the activity to report.

    weights: the file of the model's weights, if it has one.
    """

    config: RunConfig
    inputs: InputFormat
    model: nn.Module
    values: ScoredValues
    activity: str
    weights: BlobName | None = None


@dataclass(frozen=True)
class PassResult:
    """A pass's values by name, and the account of those who computed them."""

    computed: Mapping[str, Tensor]
    scored_by: Mapping[str, Any] | None = None


# Computes a pass on the workspace's device, or with others.
RunPass = Callable[[Workspace, ModelPass], PassResult]


def outputs_identity(workspace: Workspace, sources: Sources) -> tuple[object, ...]:
    """All that the outputs of the sources' model depend on."""
    inputs, weights = sources.model
    return (weights.sha256, *_besides_weights(workspace, sources.config, inputs))


def _besides_weights(
    workspace: Workspace, config: RunConfig, inputs: InputFormat
) -> tuple[object, ...]:
    return (
        workspace.dataset.fingerprint,
        config.network,
        inputs,
        config.evaluation_threads,
        str(workspace.device),
    )


def pass_here(workspace: Workspace, model_pass: ModelPass) -> PassResult:
    """Compute a pass in this process."""
    with computation(model_pass.config.evaluation_threads):
        batches = workspace.batches(model_pass.inputs, model_pass.activity)
        model, values = model_pass.model, model_pass.values
        return PassResult(compute_values(model, batches, values, scratch=workspace.scratch))


def model_norms(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """Gradient norms of all parameters, and the labels; a backward pass per example."""
    chunk = default_chunk_size(model, workspace.device)
    chunks = workspace.batches(inputs, "computing per-example gradients", size=chunk)
    norms_N = full_gradient_norms(model, chunks, cpu_threads=config.evaluation_threads)
    alone = labels_only(workspace.dataset.labels_N, workspace.dataset.target.kind)
    return replace(alone, gradient_norms_N=norms_N)


def signals_of(
    workspace: Workspace,
    sources: Sources,
    needs: frozenset[Need],
    depends_on: tuple[object, ...],
    load: Callable[[], nn.Module],
    *,
    run_pass: RunPass = pass_here,
    weights: BlobName | None = None,
    models: int = 0,
) -> Signals:
    """The signals that one model provides, and the labels, each computed once.

    weights: the file of the model's weights, if it has one.
    """
    dataset, config, inputs = workspace.dataset, sources.config, sources.model[0]

    def signals() -> Signals:
        model = load()
        model_pass = ModelPass(
            config, inputs, model, ScoredValues.SIGNALS, "computing signals", weights
        )
        done = run_pass(workspace, model_pass)
        read = signals_from(done.computed, model, dataset, torch.arange(len(dataset)))
        return replace(read, scored_by=done.scored_by)

    def cached(kind: str, compute: Callable[[], Signals]) -> Signals:
        return workspace.cached(Key(Signals, kind, depends_on, models), compute)

    collected = labels_only(dataset.labels_N, dataset.target.kind)
    if needs & PROXY_NEEDS:
        collected = cached("signals", signals)
    if Need.GRADIENT_NORMS in needs:
        norms = cached("gradients", lambda: model_norms(workspace, config, inputs, load()))
        collected = replace(collected, gradient_norms_N=norms.gradient_norms_N)
    return collected


def dynamics_of(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, trajectories: Trajectories
) -> Dynamics:
    """The learners' probabilities of every example during training, computed once."""
    soup = config.soup
    depends_on = (
        trajectories,
        # Inputs of the draws of shards and of examples for batch norm, besides the fingerprint.
        (config.seed, config.validation, config.learners),
        *_besides_weights(workspace, config, inputs),
        soup.batch_norm_examples if soup.reestimate_batch_norm else None,
    )

    def compute() -> Dynamics:
        model = workspace.new_model(config)
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        states = States(
            initial=partial(workspace.read_weights, trajectories.initial_weights, model),
            learners=tuple(
                tuple(partial(read, name) for name in learner.snapshots or (learner.result,))
                for learner in trajectories.learners
            ),
        )
        with computation(config.evaluation_threads):
            return compute_dynamics(
                model,
                states,
                workspace.batches(inputs, "computing the learners' outputs"),
                own_learner_N=own_learners(workspace, config, trajectories),
                batch_norm_examples_M=workspace.batch_norm_examples(config),
                frozen=workspace.frozen(config, model),
            )

    return workspace.cached(Key(Dynamics, "dynamics", depends_on), compute)


def own_learners(workspace: Workspace, config: RunConfig, trajectories: Trajectories) -> Tensor:
    """Index of the learner trained on each example, -1 for none, from shards drawn again."""
    own_learner_N = torch.full((len(workspace.dataset),), -1, dtype=torch.int16)
    drawn = workspace.shards(config)
    for place, learner in enumerate(trajectories.learners):
        own_learner_N[drawn[learner.index]] = place
    return own_learner_N


@dataclass(frozen=True)
class WarmUpSignals:
    """Signals of warmed-up models; seconds of their training, in all and in this job."""

    signals: Signals
    seconds: float
    spent_seconds: float


def warm_up_signals(
    workspace: Workspace, sources: Sources, asked: WarmUp, needs: frozenset[Need]
) -> WarmUpSignals:
    """Train missing models and compute signals with each; the first starts from theta*."""
    config, of_models = sources.config, list[Signals]()
    inputs, theta_star = sources.model
    seconds = spent_seconds = 0.0
    for index in range(asked.models):
        depends_on: tuple[object, ...] = (
            theta_star.sha256,
            workspace.dataset.fingerprint,
            config.seed,
            config.network,
            config.validation,
            config.learners.frozen,
            config.learners.cpu_threads,
            inputs,
            asked.epochs,
            index,
            str(workspace.device),
        )
        # One at a time, to free its weights.
        key = Key(WarmUpState, "warm-up", depends_on, asked.models)
        state, spent = _warm_up(workspace, sources, asked, index, key)
        seconds += state.seconds
        spent_seconds += spent

        def load(weights: Weights = state.weights) -> nn.Module:
            model = workspace.new_model(config)
            model.load_state_dict(weights)
            return model.eval()

        depends_on = (*depends_on, config.evaluation_threads)
        of_models.append(
            signals_of(workspace, sources, needs, depends_on, load, models=asked.models)
        )
    first, *later_models = of_models
    return WarmUpSignals(replace(first, other_models=tuple(later_models)), seconds, spent_seconds)


def _warm_up(
    workspace: Workspace, sources: Sources, asked: WarmUp, index: int, key: Key[WarmUpState]
) -> tuple[WarmUpState, float]:
    config, (inputs, theta_star) = sources.config, sources.model
    train_ids = workspace.split(config).train_ids
    begun = workspace.find(key)
    if begun is not None and begun.step >= num_steps_of(asked.epochs, len(train_ids)):
        return begun, 0.0
    if index == 0:
        model = workspace.loaded_model(config, theta_star)
    else:
        model = workspace.new_model(config, derive_seed(config.seed, "warm-up model", index))
    freeze(model.train(), workspace.frozen(config, model))
    number = f" {index + 1} of {asked.models}" * (asked.models > 1)
    state = warm_up(
        model,
        workspace.dataset,
        train_ids,
        asked.epochs,
        inputs,
        seed=derive_seed(config.seed, "warm-up", index),
        device=workspace.device,
        cpu_threads=config.learners.cpu_threads,
        begun=begun,
        on_progress=workspace.progress(f"warming up model{number}"),
        on_epoch=partial(workspace.keep, key),
    )
    workspace.keep(key, state)
    return state, state.seconds - (0.0 if begun is None else begun.seconds)
