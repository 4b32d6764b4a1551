"""Learner trajectories: the dynamics of a run's learners, from blobs, computed once.

Pruning is no step of training: a learner that left snapshots is looked at as it was before
it, and its result only where there is no such state. That is so in runs without snapshots,
and in runs of versions whose last snapshot came a few steps before the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.inputs.formats import InputFormat
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.own_shards import own_learners
from lipt.coordinator.state.records import CommittedLearner
from lipt.core.pruned import is_pruned_from
from lipt.core.signals.compute_dynamics import States, compute_dynamics
from lipt.core.signals.dynamics import Dynamics


@dataclass(frozen=True)
class Trajectories:
    """Where all learners came from, and what each became; ascending by index."""

    initial_weights: BlobName
    learners: tuple[CommittedLearner, ...]


def dynamics_of(
    context: Context,
    config: RunConfig,
    inputs: InputFormat,
    trajectories: Trajectories,
    shards: tuple[BlobName, ...],
) -> Dynamics:
    """How the learners came to see every example of the data set.

    Args:
        context: has the run's data and blobs.
        config: the run's.
        inputs: what the run's models are given.
        trajectories: at least one learner.
        shards: the name of what each of these learners was trained on.
    """
    soup = config.soup
    statistics = (soup.batch_norm_examples, config.validation, config.seed)
    depends_on = (
        trajectories,
        shards,
        # What shards are drawn by, besides the fingerprint.
        (config.seed, config.validation, config.learners),
        context.dataset.fingerprint,
        config.model,
        inputs,
        config.evaluation_threads,
        str(context.device),
        statistics if soup.reestimate_batch_norm else None,
    )

    indices = (learner.index for learner in trajectories.learners)
    given = tuple(zip(indices, shards, strict=True))

    def compute() -> Dynamics:
        model = context.new_model(config)
        reader = context.learner_reader(config, trajectories.initial_weights, model)

        def read(name: BlobName) -> Weights:
            return dict(reader.open(context.blobs.verified_path(name)))

        def loader(name: BlobName) -> Callable[[], Weights]:
            return lambda: read(name)

        states = States(
            initial=partial(context.read_weights, trajectories.initial_weights, model),
            learners=tuple(
                tuple(map(loader, states)) for states in states_of(trajectories.learners, read)
            ),
        )
        with pinned_kernels(config.evaluation_threads):
            return compute_dynamics(
                model,
                states,
                context.batches(inputs, "asking the learners"),
                own_learner_N=own_learners(context, config, given),
                batch_norm_examples_M=context.batch_norm_examples(config),
                frozen=context.frozen(config, model),
            )

    return context.cached("dynamics", depends_on, load=Dynamics.load, compute=compute)


def states_of(
    learners: tuple[CommittedLearner, ...], read: Callable[[BlobName], Weights]
) -> tuple[tuple[BlobName, ...], ...]:
    """The states of each learner, as many of one as of another, in the order of training."""
    seen_to_the_end = all(
        learner.snapshots and is_pruned_from(read(learner.result), read(learner.snapshots[-1]))
        for learner in learners
    )
    if seen_to_the_end:
        return tuple(learner.snapshots for learner in learners)
    return tuple((*learner.snapshots, learner.result) for learner in learners)
