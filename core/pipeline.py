"""The pipeline: LiPT (Ro et al. 2023) on one page, from a data set to the examples to train on.

`pretrain` is the paper's section 3, `choose` the selection. They run in the caller's process; the
service's coordinator and workers call the same four stages where their data is:

    initial_weights -> cut_shards -> train_learner (per learner) -> merge_learners

Shapes: N examples, n learners of M minibatches of B examples.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig, ShardRule, SoupMethod
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import DivergedError
from lipt.common.observability.tracing import span
from lipt.common.states import Divergence
from lipt.common.tensor_files import Weights, pack
from lipt.core.pretraining.evaluation import Evaluator, OpenWeights, num_evaluated_together
from lipt.core.pretraining.initialization import initialize, num_initialization_steps
from lipt.core.pretraining.merged import InputBatches, Merged, added_by
from lipt.core.pretraining.merged_tokens import merged_class
from lipt.core.pretraining.results import (
    CommittedLearner,
    PretrainingState,
    divergence_message,
    pack_initial,
)
from lipt.core.pretraining.sharding import draw_by_shares, draw_densities
from lipt.core.pretraining.simplex import uniform
from lipt.core.pretraining.soup import OnIngredient, Soup, greedy_soup, weighted_soup
from lipt.core.stages.choice import ChosenSubset
from lipt.core.stages.choice import choose as choose_on
from lipt.core.stages.needed_learners import needs_learners
from lipt.core.stages.resolve import ResolvedRequest, sources_of
from lipt.core.workspace import InMemory, Workspace
from lipt.data.dataset import input_format
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import InputFormat
from lipt.models.checkpoints import read_initial
from lipt.models.encodings import encode_weights
from lipt.models.head import freeze

logger = logging.getLogger(__name__)

# The name of a run without a coordinator, and the weights of one that trains nothing.
_NAME, _NOTHING = "in this process", BlobName.of(b"")


@dataclass(frozen=True)
class PretrainingResult:
    """The outcome of pre-training in a workspace, with seconds by stage."""

    workspace: InMemory
    outcome: PretrainingState
    seconds: Mapping[str, float]
    soup: Soup | None = None


def pretrain(
    workspace: InMemory, config: RunConfig, given: bytes | Path | None = None
) -> PretrainingResult:
    """Train n learners on disjoint shards and merge them; theta* starts from `given`, if any."""
    # 3.1 The initial weights theta*: the chaotic first steps, for all learners alike.
    begun = begin(workspace, config, given)
    inputs, initial_name = begun.outcome.inputs, begun.outcome.initial_weights
    assert inputs is not None and initial_name is not None  # noqa: S101, PT018 - just made
    started = monotonic()
    # 3.2 A tiny disjoint shard for each learner, and its density.
    cuts = cut_shards(workspace, config)
    cut = monotonic()
    # 3.3 The learners, independent of each other.
    initial = workspace.read_weights(initial_name, workspace.new_model(config))
    learners = train_learners(workspace, config, inputs, initial, cuts)
    trained = monotonic()
    # 3.4 The greedy soup theta_p.
    read = workspace.read_learners(config, initial_name, workspace.new_model(config))
    opened = [partial(read, learner.result) for learner in learners]
    soup, _ = merge_learners(workspace, config, inputs, initial, opened)
    theta_p = workspace.put(pack(soup.weights))
    outcome = replace(begun.outcome, pretrained_weights=theta_p, learners=learners)
    seconds = {
        **begun.seconds,
        "sharding_seconds": cut - started,
        "training_seconds": trained - cut,
        "merging_seconds": monotonic() - trained,
    }
    return PretrainingResult(workspace, outcome, seconds, soup)


def begin(
    workspace: InMemory, config: RunConfig, given: bytes | Path | None = None, *, stage: int = 0
) -> PretrainingResult:
    """Make theta* alone, for an ordinary warm-up and some proxies; `stage` as for its weights."""
    started = monotonic()
    initial, frozen, inputs = initial_weights(workspace, config, given, stage=stage)
    name = workspace.put(pack_initial(initial, frozen))
    outcome = PretrainingState(_NAME, config, inputs, name, _NOTHING, ())
    return PretrainingResult(workspace, outcome, {"initialization_seconds": monotonic() - started})


def without_training(workspace: InMemory, config: RunConfig) -> PretrainingResult:
    """Train nothing, for choices by labels, columns or patches alone."""
    inputs = model_inputs(workspace, config)
    return PretrainingResult(
        workspace, PretrainingState(_NAME, config, inputs, _NOTHING, _NOTHING, ()), {}
    )


def choose(pretrained: PretrainingResult, request: ResolvedRequest) -> ChosenSubset:
    """Choose examples by a strategy, on theta_p's gradients unless the request names others."""
    sources = sources_of(pretrained.outcome, request)
    return choose_on(pretrained.workspace, request, sources)


def can_choose(begun: PretrainingResult, request: ResolvedRequest) -> bool:
    """Whether no learner is needed, as `auto` finds before any is trained."""
    return not needs_learners(begun.workspace, request, sources_of(begun.outcome, request))


def initial_weights(
    workspace: Workspace, config: RunConfig, given: bytes | Path | None, *, stage: int = 0
) -> tuple[Weights, frozenset[str], InputFormat]:
    """theta*, the names that learners leave frozen, and the models' input format.

    A later `stage` draws other examples, to train a `given` theta* on.
    """
    dataset, seed = workspace.dataset, derive_seed(config.seed, "initialization", stage)
    inputs, model = model_inputs(workspace, config), workspace.new_model(config)
    if given is not None:
        size = given.stat().st_size if isinstance(given, Path) else len(given)
        new_head = config.initialization.new_head
        weights, _ = read_initial(given, model, new_head=new_head, max_bytes=size)
        # A new head keeps its random weights, and adapters theirs.
        model.load_state_dict(weights, strict=False)
    freeze(model, workspace.frozen_at_first(config, model))
    trained = initialize(
        model,
        dataset,
        _initialization_ids(workspace, config, seed),
        config.initialization,
        inputs,
        seed=seed,
        device=workspace.device,
        cpu_threads=config.learners.cpu_threads,
        on_progress=workspace.progress("training the initial weights"),
    )
    return trained, workspace.frozen(config, model), inputs


def _initialization_ids(workspace: Workspace, config: RunConfig, seed: int) -> Tensor:
    """The training split; by source as many examples of each as are needed, drawn again if few."""
    train_ids, initial = workspace.split(config).train_ids, config.initialization
    if config.learners.shards is ShardRule.RANDOM:
        return train_ids
    sources = [ids for ids in workspace.source_ids(config).values() if len(ids)]
    # A set of at least one example is needed where no step is taken.
    total = max(num_initialization_steps(initial, len(train_ids)) * initial.batch_size, 1)
    drawn = derive_generator(seed, "examples of sources")
    return draw_by_shares(sources, uniform(len(sources)), total, generator=drawn)


def model_inputs(workspace: Workspace, config: RunConfig) -> InputFormat:
    """The input format of the run's models, normalized by the training split."""
    train_ids = workspace.split(config).train_ids
    return input_format(workspace.dataset, train_ids, derive_seed(config.seed, "normalization"))


def cut_shards(workspace: Workspace, config: RunConfig) -> list[tuple[Tensor, float]]:
    """For each learner the M x B ids of its shard, and its density."""
    shards = workspace.shards(config)
    densities = draw_densities(len(shards), config.pruning, seed=config.seed)
    return list(zip(shards, densities, strict=True))


def train_learners(
    workspace: InMemory,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    cuts: Sequence[tuple[Tensor, float]],
) -> tuple[CommittedLearner, ...]:
    """Train the learners one after another, without those that diverge, as a coordinator does."""
    learners, diverged = list[CommittedLearner](), list[Divergence]()
    for index, (ids, density) in enumerate(cuts):
        try:
            made = workspace.train_learner(config, inputs, initial, index, ids, density)
        except DivergedError as error:
            diverged.append(error.divergence)
            continue
        # In a worker's format.
        *snapshots, result = (
            workspace.put(encode_weights(weights, config.learners.encoding))
            for weights in (*made.snapshots, made.weights)
        )
        learners.append(CommittedLearner(index, tuple(snapshots), result))
    if diverged:
        message = divergence_message(diverged, len(cuts))
        if len(learners) < config.learners.min_learners:
            raise DivergedError(message)
        logger.warning("%s", message)
    return tuple(learners)


def evaluator_of(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    ids: Tensor,
    num_models: int = 1,
    *,
    batch_norm_examples_M: Stored | None = None,
) -> Evaluator:
    """Scores weights of the run's model on some examples."""
    dataset = workspace.dataset
    models = [workspace.new_model(config) for _ in range(num_models)]
    return Evaluator(
        models,
        inputs=inputs,
        device=workspace.device,
        examples_N=dataset.examples(ids),
        target=dataset.target,
        targets_N=dataset.targets_N[ids],
        batch_norm_examples_M=batch_norm_examples_M,
        batch_size=workspace.batch_size,
        frozen=workspace.frozen(config, models[0]),
    )


def merged_on(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    learners: Sequence[Weights],
    ids: Tensor,
) -> Merged:
    """Learners that merge by any weights, with the examples on which those are judged."""
    dataset, model = workspace.dataset, workspace.new_model(config)
    model.load_state_dict(initial)
    return merged_class(dataset.target)(
        model,
        initial,
        added_by(initial, learners, workspace.frozen(config, model)),
        InputBatches(dataset.examples(ids), inputs, workspace.device),
        dataset.target,
        dataset.targets_N[ids],
    )


def merge_learners(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    learners: Sequence[OpenWeights],
    on_ingredient: OnIngredient = lambda _index, _ingredient: None,
) -> tuple[Soup, float]:
    """Merge learners, reopened at every call, by their validation scores.

    Returns theta*'s accuracy, too.
    """
    soup, ids = config.soup, workspace.split(config).validation_ids
    # On a CPU several weights are scored at a time.
    number = num_evaluated_together(config) if workspace.device.type == "cpu" else 1
    norm_M = workspace.batch_norm_examples(config)
    evaluator = evaluator_of(workspace, config, inputs, ids, number, batch_norm_examples_M=norm_M)
    interpolates = soup.method is SoupMethod.INTERPOLATION
    report = workspace.progress("merging learners")
    with (
        computation(1),
        span("soup", method=soup.method.value, num_learners=len(learners)) as merging,
    ):
        initial_accuracy = evaluator.score(initial).accuracy
        if soup.method is SoupMethod.UNIFORM:
            made = weighted_soup(learners, None, evaluator, on_progress=report)
        elif soup.method is SoupMethod.SIMPLEX:
            shares = _fitted_shares(workspace, config, inputs, initial, learners)
            made = weighted_soup(learners, shares, evaluator, on_progress=report)
        else:
            made = greedy_soup(
                learners,
                evaluator,
                num_alphas=soup.num_alphas if interpolates else None,
                on_progress=report,
                on_ingredient=on_ingredient,
            )
        merging.note(accuracy=made.accuracy)
    return made, initial_accuracy


def _fitted_shares(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    learners: Sequence[OpenWeights],
) -> list[float]:
    """The learners' weights whose mean has the least loss on the validation split."""
    ids = workspace.split(config).validation_ids
    opened = [dict(learner()) for learner in learners]
    merged = merged_on(workspace, config, inputs, initial, opened, ids)
    shares: list[float] = merged.fit(seed=config.seed, num_resamples=0).weights_K.tolist()
    return shares
