"""Learner trajectories: how a run's learners came to see every example, computed once.

Pruning is no step of training: a learner that left snapshots, the last of which is its state
before pruning, is looked at in these; one that left none in its result.

Shapes: N examples.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.inputs.formats import InputFormat
from lipt.core.results import CommittedLearner, Trajectories
from lipt.core.sharding import draw_shards
from lipt.core.signals.compute_dynamics import States, compute_dynamics
from lipt.core.signals.dynamics import Dynamics
from lipt.core.workspace import Workspace


def dynamics_of(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    trajectories: Trajectories,
) -> Dynamics:
    """How the learners came to see every example of the data set.

    Args:
        workspace: has the run's data and weights.
        config: the run's.
        inputs: what the run's models are given.
        trajectories: at least one learner.
    """
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

    Returns:
        N int16.
    """
    own_learner_N = torch.full((len(workspace.dataset),), -1, dtype=torch.int16)
    drawn = draw_shards(workspace.split(config).train_ids, config.learners, seed=config.seed)
    for place, learner in enumerate(trajectories.learners):
        own_learner_N[drawn[learner.index]] = place
    return own_learner_N


def states_of(learner: CommittedLearner) -> tuple[BlobName, ...]:
    """The states that a learner is looked at in, in the order of training."""
    return learner.snapshots or (learner.result,)
