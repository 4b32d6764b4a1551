"""Learning: theta*, and short learners of each source alone, until theta* is ready for a target.

theta* is trained on equal shares of all sources, and each source then has two learners of a few
steps from it. Where their weights are not ready, theta* is trained on for as long again, and the
learners anew. Both learners of a source are averaged for the fit.

A service's run trains theta* for its number of steps, before it knows any target; its learners
then serve every target.

Shapes: K sources, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.errors import DataError
from lipt.common.tensor_files import Weights
from lipt.core.mixture.readiness import Readiness, readiness_of
from lipt.core.pipeline import begin, cut_shards, merged_on, train_learners
from lipt.core.pretraining.initialization import begins_trained
from lipt.core.pretraining.merged import InputBatches, Merged
from lipt.core.pretraining.sharding import NUM_HALVES
from lipt.core.workspace import InMemory, Workspace
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import InputFormat
from lipt.data.joining import appended

# Shared steps of theta* from random weights, before the first and the last test.
_FIRST_STEPS, _MOST_STEPS = 100, 1600
_FEWEST_TARGET = 2


@dataclass(frozen=True)
class TargetedPool:
    """The sources' examples and then the target's, as one data set, with the positions of each."""

    dataset: Dataset
    source_ids: Mapping[str, Tensor]
    target_ids: Tensor
    # Of each source, also of those whose examples workers hold, which are not here.
    sizes: Mapping[str, int]
    # Of the sources' data alone.
    fingerprint: str
    # Examples of the target before some were drawn.
    num_given: int

    @classmethod
    def of(
        cls,
        pool: Dataset,
        target: Dataset,
        num_given: int,
        elsewhere: Mapping[str, int] = MappingProxyType({}),
    ) -> Self:
        """DataError if the target has one example, or others than the pool's kind.

        `elsewhere` are sizes of sources whose examples workers hold.
        """
        if len(target) < _FEWEST_TARGET:
            raise DataError(
                f"the target has {len(target)} example, and shares are judged on others than those "
                f"that they are fitted to. Give at least {_FEWEST_TARGET}, and better 30."
            )
        both = appended(pool, target)
        target_ids = torch.arange(len(pool), len(both))
        source_ids = pool.source_ids | dict.fromkeys(elsewhere, target_ids[:0])
        sizes = {name: len(ids) for name, ids in pool.source_ids.items()} | dict(elsewhere)
        return cls(both, source_ids, target_ids, sizes, pool.fingerprint, num_given)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.source_ids)

    @property
    def pool_ids(self) -> Tensor:
        return torch.cat(list(self.source_ids.values()))


@dataclass(frozen=True)
class Learned:
    """theta*, the averaged learners with the target, and every readiness test, in order.

    crossed_N: each target example's gain under one half of the learners by the other's weights.
    batches_of: from positions to a model's inputs.
    """

    initial: Weights
    inputs: InputFormat
    merged: Merged
    readiness: tuple[Readiness, ...]
    crossed_N: Tensor
    batches_of: Callable[[Tensor], InputBatches]


def learn(
    workspace: InMemory,
    targeted: Workspace,
    pool: TargetedPool,
    config: RunConfig,
    given: bytes | None = None,
) -> Learned:
    """Train theta*, from `given` weights if any, and learners until theta* is ready.

    `workspace` has the sources alone, `targeted` the whole pool. A theta* that comes trained, and
    `initialization.steps`, are taken as they are; their readiness is still tested. DivergedError if
    a learner's loss is not finite.
    """
    first = config.initialization
    fixed = begins_trained(config) or first.steps is not None
    learned: Learned | None = None
    tests, total = list[Readiness](), 0
    for stage, steps in enumerate([first.steps or 0] if fixed else _stages()):
        total += steps
        settings = first.model_copy(update={"steps": steps})
        staged = config.model_copy(update={"initialization": settings})
        begun = begin(workspace, staged, given, stage=stage).outcome
        inputs, name, model = begun.inputs, begun.initial_weights, workspace.new_model(config)
        assert inputs is not None and name is not None  # noqa: S101, PT018 - just made
        initial, given = workspace.read_weights(name, model), workspace.read(name)
        cuts = cut_shards(workspace, config)
        trained = train_learners(workspace, config, inputs, initial, cuts)
        read = workspace.read_learners(config, name, model)
        learners = [dict(read(learner.result)) for learner in trained]
        learned = learned_for(targeted, pool, config, inputs, initial, learners, steps=total)
        tests += learned.readiness
        if tests[-1].is_ready:
            break
    assert learned is not None  # noqa: S101 - there is a stage
    return replace(learned, readiness=tuple(tests))


def learned_for(
    workspace: Workspace,
    pool: TargetedPool,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    learners: Sequence[Weights],
    *,
    steps: int,
) -> Learned:
    """Learners, first halves first, with a target, and whether theta* is ready for it."""
    dataset = pool.dataset

    def batches_of(ids: Tensor) -> InputBatches:
        return InputBatches(dataset.examples(ids), inputs, workspace.device)

    of = merged_on(workspace, config, inputs, initial, learners, pool.target_ids)
    first, second = (
        replace(of, added={name: parts.chunk(NUM_HALVES)[half] for name, parts in of.added.items()})
        for half in range(NUM_HALVES)
    )
    pool_targets_N = dataset.targets_N[pool.pool_ids]
    test, crossed_N = readiness_of(steps, (first, second), pool_targets_N, seed=config.seed)
    merged = replace(
        of, added={name: (first.added[name] + second.added[name]) / NUM_HALVES for name in of.added}
    )
    return Learned(initial, inputs, merged, (test,), crossed_N, batches_of)


def _stages() -> Iterator[int]:
    """Steps to add before each test, so that their sum doubles."""
    total = 0
    while total < _MOST_STEPS:
        added = max(_FIRST_STEPS, total)
        yield added
        total += added
