"""Learning: theta*, and short learners of each source alone, until theta* is ready.

theta* is trained on equal shares of all sources, and each source then has two learners of a few
steps from it. Where their weights are not ready, theta* is trained on for as long again, and the
learners anew. Both learners of a source are averaged for the fit.

Shapes: K sources, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import DataError
from lipt.common.tensor_files import Weights, pack
from lipt.core.mixture.merged import Merged, added_by
from lipt.core.mixture.readiness import Readiness, readiness_of
from lipt.core.mixture.simplex import uniform
from lipt.core.pipeline import one_learner
from lipt.core.pretraining.evaluation import batch_norm_inputs
from lipt.core.pretraining.initialization import initialize
from lipt.core.selection.by_source import MAX_SOURCES
from lipt.core.selection.selection import proportional_quotas
from lipt.core.workspace import InMemory
from lipt.data.dataset import input_format
from lipt.data.inputs.specs import InputFormat, Inputs
from lipt.models.head import freeze

# Two learners of each source: their agreement is a part of the readiness test.
NUM_HALVES = 2
# Shared steps of theta* from random weights, before the first and the last test.
_FIRST_STEPS, _MOST_STEPS = 100, 1600
# One pass of plain training: what a learner shares with its source matters, not how well it does.
MIXTURE_DEFAULTS: Any = MappingProxyType(
    {
        "initialization": {"batch_size": 64, "learning_rate": 0.05},
        "learners": {"num_minibatches": 60, "num_steps": 1, "batch_size": 64},
        "augmentation": {"method": "none"},
        "pruning": {"method": "none", "density_min": 1.0, "density_max": 1.0},
    }
)
"""Settings of a mixture's learners, nested as in `RunConfig`."""
# Batch statistics of fewer examples are noisy.
_TARGET_BATCH = 256


@dataclass(frozen=True)
class Learned:
    """theta*, the averaged learners with the target, and every readiness test, in order.

    crossed_N: each target example's gain under one half of the learners by the other's weights.
    batches_of: from ids to a model's inputs.
    """

    initial: Weights
    inputs: InputFormat
    merged: Merged
    readiness: tuple[Readiness, ...]
    crossed_N: Tensor
    batches_of: Callable[[Tensor], list[Inputs]]


def learn(
    workspace: InMemory,
    config: RunConfig,
    source_ids: Sequence[Tensor],
    target_ids: Tensor,
    given: Weights | None = None,
) -> Learned:
    """Train theta*, from `given` weights if any, and learners until theta* is ready.

    Given weights, or `initialization.steps` of the configuration, are taken as they are; their
    readiness is still tested. DivergedError if a learner's loss is not finite.
    """
    if not 1 <= len(source_ids) <= MAX_SOURCES:
        raise DataError(
            f"there are {len(source_ids)} sources. Give from 1 to {MAX_SOURCES}, and join those "
            "that are alike."
        )
    dataset, steps = workspace.dataset, config.initialization.steps
    pool_ids = torch.cat(list(source_ids))
    inputs = input_format(dataset, pool_ids, derive_seed(config.seed, "normalization"))
    model = workspace.new_model(config)
    if given is not None:
        model.load_state_dict(given)
    frozen = workspace.frozen(config, model)
    freeze(model, frozen)
    fixed = given is not None or steps is not None
    stages = [(steps or 0)] if fixed else list(_stages())
    tests: list[Readiness] = []

    def batches_of(ids: Tensor) -> list[Inputs]:
        examples = dataset.examples(ids)
        parts = batch_norm_inputs(examples, inputs, workspace.device, batch_size=_TARGET_BATCH)
        return list(parts)

    batches = batches_of(target_ids)
    initial: Weights = {}
    merged: Merged | None = None
    crossed_N = torch.zeros(len(target_ids))
    for number, num_steps in enumerate(stages):
        ids = _equal(source_ids, num_steps * config.initialization.batch_size, config, number)
        initial = initialize(
            model,
            dataset,
            ids,
            config.initialization.model_copy(update={"steps": num_steps}),
            inputs,
            seed=derive_seed(config.seed, "mixture initialization", number),
            device=workspace.device,
            cpu_threads=config.learners.cpu_threads,
            on_progress=workspace.progress("training the initial weights"),
        )
        halves = _learners(workspace, config, inputs, initial, source_ids)
        added = added_by(initial, halves)
        of = Merged(
            workspace.new_model(config),
            *(initial, added, batches, dataset.target, dataset.targets_N[target_ids]),
        )
        # The first halves come first.
        first, second = (
            replace(
                of, added={name: parts.chunk(NUM_HALVES)[half] for name, parts in added.items()}
            )
            for half in range(NUM_HALVES)
        )
        total = sum(stages[: number + 1])
        pool_targets_N = dataset.targets_N[pool_ids]
        test, crossed_N = readiness_of(total, (first, second), pool_targets_N, seed=config.seed)
        tests.append(test)
        merged = replace(
            of, added={name: (first.added[name] + second.added[name]) / 2 for name in added}
        )
        if tests[-1].is_ready:
            break
    assert merged is not None  # noqa: S101 - there is a stage
    return Learned(initial, inputs, merged, tuple(tests), crossed_N, batches_of)


def _stages() -> Iterator[int]:
    """Steps to add before each test, so that their sum doubles."""
    total = 0
    while total < _MOST_STEPS:
        added = max(_FIRST_STEPS, total)
        yield added
        total += added


def _equal(source_ids: Sequence[Tensor], total: int, config: RunConfig, number: int) -> Tensor:
    draws = derive_generator(config.seed, "mixture initialization", number)
    # A set of at least one example is needed where no step is taken.
    return draw(source_ids, uniform(len(source_ids)), max(total, 1), generator=draws)


def draw(
    source_ids: Sequence[Tensor], shares_K: Tensor, total: int, *, generator: torch.Generator
) -> Tensor:
    """Draw ids by shares, without replacement while a source lasts, then again; shuffled."""
    drawn = []
    for ids, count in zip(source_ids, proportional_quotas(shares_K.tolist(), total), strict=True):
        rounds = [
            torch.randperm(len(ids), generator=generator) for _ in range(-(-count // len(ids)))
        ]
        drawn.append(ids[torch.cat([torch.empty(0, dtype=torch.int64), *rounds])[:count]])
    ids = torch.cat(drawn)
    return ids[torch.randperm(len(ids), generator=generator)]


def _learners(
    workspace: InMemory,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    sources: Sequence[Tensor],
) -> list[Weights]:
    """A learner of every source, then another, each of one shard of M x B examples."""
    name = workspace.put(pack(initial))
    read = workspace.read_learners(config, name, workspace.new_model(config))
    size = config.learners.num_minibatches * config.learners.batch_size
    found = list[Weights]()
    for index in range(NUM_HALVES * len(sources)):
        ids = sources[index % len(sources)]
        draws = derive_generator(config.seed, "mixture shard", index)
        shard = draw([ids], torch.ones(1), size, generator=draws)
        density = config.pruning.density_max
        trained = one_learner(workspace, config, inputs, initial, index, shard, density)
        found.append(dict(read(trained.result)))
    return found
