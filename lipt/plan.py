"""Plan: images, bytes, memory and seconds of a run and a subset, before anything runs.

Images, bytes and memory are those of a coordinator's admission. Seconds are measured per image on
one batch each of training, evaluation and scoring. Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.process import this_machine
from lipt.common.requests import FeatureKind
from lipt.common.tensor_files import copy_to_cpu
from lipt.common.text import format_bytes
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.runs.admission import ceilings
from lipt.coordinator.settings import LimitSettings
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.pipeline import evaluator_of, model_inputs
from lipt.core.planning import (
    INPUT_BYTES,
    PROCESS_BYTES,
    STEP_IMAGES,
    Part,
    Stage,
    excesses,
    plan_learner,
    plan_run,
    resident_bytes,
    total,
)
from lipt.core.pretraining.evaluation import num_evaluated_together
from lipt.core.pretraining.sharding import num_validation_examples, require_shards_fit
from lipt.core.proxies.features import MAX_WIDTH
from lipt.core.proxies.proxy import passes_of
from lipt.core.proxies.untrained import NUM_FILTERS
from lipt.core.selection.select import find_strategy
from lipt.core.selection.solvers.representatives import MATRIX_BYTES
from lipt.core.selection.strategy import Growth
from lipt.core.signals.compute import compute_values
from lipt.core.signals.signals import STORAGE_LIMITS
from lipt.core.signals.views import Need
from lipt.core.stages.resolve import ResolvedRequest
from lipt.core.tasks import ScoredValues
from lipt.data.dataset import Dataset
from lipt.data.shard import pack_shard
from lipt.data.targets.kinds import TargetKind
from lipt.models.footprint import ModelFigures, measure_model
from lipt.models.head import find_head
from lipt.pretraining import Pretrained
from lipt.trainer.formatting import table_lines

# Examples packed to estimate a shard's bytes.
_SAMPLE = 256


@dataclass(frozen=True)
class StageEstimate:
    """Upper bound of a stage's peak memory and images; `seconds` are None if untimed."""

    name: str
    process: str
    memory_bytes: int
    images: int
    work: str
    seconds: float | None


@dataclass(frozen=True)
class Estimate:
    """Upper bound of the cost of a run and a subset."""

    subject: str
    lowered_defaults: str
    refused: tuple[str, ...]
    stages: tuple[StageEstimate, ...]
    bytes_to_workers: int
    bytes_from_workers: int
    run_disk_bytes: int
    signals_bytes: int
    strategy_cost: str


def estimate(
    opened: Pretrained,
    request: ResolvedRequest,
    *,
    num_workers: int = 1,
    timed: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Estimate:
    """Estimate the cost of a run and a subset; nothing is trained.

    `num_workers` train in parallel, each on cores like this machine's. `timed` runs one batch of
    each kind of work, but never for a refused run. `report` receives lines of progress.
    """
    config, dataset, workspace = opened.config, opened.data, opened.workspace
    data, learners = DataDescription.of(dataset), config.learners
    network, size, machine = workspace.new_model(config).cpu(), workspace.batch_size, this_machine()
    held_out = num_validation_examples(data.class_counts, config.validation)
    require_shards_fit(data.num_examples - held_out, learners)
    figures = measure_model(network, config.model, inputs=data.inputs, frozen=learners.frozen)
    plan = plan_run(config, figures, data.inputs, data.class_counts, evaluation_batch_size=size)
    free = shutil.disk_usage(Path.cwd()).free
    refused = excesses(plan.costs, ceilings(LimitSettings(), machine, free_disk_bytes=free))
    rates = time_images(opened, report) if timed and not refused else {}

    width = find_head(network)[1].in_features
    chosen, signals_bytes = plan_choice(request, config, data, figures, width, size)
    number = learners.num_learners * learners.redundancy
    # Tasks of a stage, and how many of them run at a time. The plan counts a learner's attempts.
    tasks = {"learners": Fraction(number, learners.max_attempts)}
    at_once = {
        "learners": number / -(-number // num_workers),
        "soup": min(num_evaluated_together(config), machine.num_cores),
    }
    stages = []
    for stage in (*plan.stages, *chosen):
        images = int(total(stage.images) * tasks.get(stage.name, 1))
        seconds = None
        if images and rates:
            seconds = images * rates[stage.verb] / at_once.get(stage.name, 1)
        taken = (total(stage.memory), images, stage.verb, seconds)
        stages.append(StageEstimate(stage.name, stage.process, *taken))
    # The size of image files is unknown, so a sample is packed.
    some = _spread(dataset, _SAMPLE)
    packed = len(pack_shard(dataset, some)) / len(some)
    shard = round(learners.num_minibatches * learners.batch_size * packed)
    return Estimate(
        f"{dataset.source}: {data.num_examples:,} examples of {data.inputs}, {config.model}, "
        f"{request.budget:,} by {request.strategy}",
        opened.lowered_defaults,
        refused,
        tuple(stages),
        # A worker downloads theta* once, and a shard per learner.
        bytes_to_workers=min(num_workers, number) * figures.weights_bytes + number * shard,
        bytes_from_workers=number * (1 + learners.num_snapshots) * plan.result_bytes,
        run_disk_bytes=total(plan.files[0].parts),
        signals_bytes=signals_bytes,
        strategy_cost=str(find_strategy(request.strategy).cost),
    )


def plan_choice(
    request: ResolvedRequest,
    config: RunConfig,
    data: DataDescription,
    figures: ModelFigures,
    width: int,
    batch_size: int,
) -> tuple[list[Stage], int]:
    """Plan the stages of a choice, for the largest proxy; returns its signals' bytes, too."""
    needs, proxy, learners = request.needs, request.proxy, config.learners
    strategy, num_targets = find_strategy(request.strategy), len(request.targets)
    number, size = data.num_examples, data.inputs.num_bytes
    looks, head_width = bool(needs & {Need.SIGNALS, Need.FEATURES, Need.VALIDATION}), 0
    passes = float(looks)
    if not proxy.is_own_head:
        plain = FeatureKind.PATCHES if are_pictures(data.inputs) else FeatureKind.COLUMNS
        kinds = proxy.features or (plain, FeatureKind.SOUP)
        passes = passes_of(kinds, learners.num_learners)
        width = sum(8 * NUM_FILTERS if kind is FeatureKind.PATCHES else MAX_WIDTH for kind in kinds)
        head_width = min(number, width)
    states = 1 + learners.num_learners * max(1, learners.num_snapshots)
    # A pass for the features of a target has the losses as well.
    besides = int(Need.LOSSES not in needs)
    # Passes over the data, and float32 numbers of each example.
    counted = {
        Need.GRADIENT_NORMS: (0, 1),
        Need.DYNAMICS: (states, 2 * states),
        Need.LOSSES: (1, 1),
        Need.PROMPTS: (1, 1),
        Need.TARGET_LOSSES: (num_targets, num_targets),
        Need.TARGET_FEATURES: (besides, besides),
    }
    needed = [counted[need] for need in needs & counted.keys()]
    passes, numbers = passes + sum(row[0] for row in needed), sum(row[1] for row in needed)
    errors = number * data.target.num_outputs * looks
    features = number * width * (looks or Need.TARGET_FEATURES in needs)
    values = (
        errors * STORAGE_LIMITS.error_dtype(errors).itemsize,
        features * STORAGE_LIMITS.feature_dtype(features).itemsize,
    )
    by_class = request.balanced or strategy.balances_itself
    largest = max(data.class_counts) if by_class else number
    # Larger matrices of all pairs are computed in rounds.
    pairs = min(MATRIX_BYTES, 4 * largest**2) if strategy.cost.growth is Growth.PAIRS else 0
    resident = Part("the data", resident_bytes(data.inputs, number))
    memory = (
        *(Part("the process", PROCESS_BYTES), resident),
        Part("the weights", figures.weights_bytes),
        Part("a batch", batch_size, figures.evaluation_bytes + INPUT_BYTES * size),
        Part("signals", sum(taken for taken in values if taken <= STORAGE_LIMITS.memory_bytes)),
        # In float64, with two copies.
        Part("a ridge head's sums", head_width**2, 3 * 8),
        Part("pairs", pairs),
    )
    images = [Part("passes", round(passes * number))]
    stages = [Stage("subset", "compute", "a choice", "scored", memory, (), images)]
    if Need.TARGET_LOSSES in needs:
        steps = {"num_minibatches": request.target_steps, "num_steps": 1, "num_snapshots": 0}
        short = learners.model_copy(update={**steps, "max_attempts": num_targets})
        run = config.model_copy(update={"learners": short})
        learner = plan_learner(run, figures, example_bytes=size)
        beside = (*learner.memory, resident)
        stages.insert(0, replace(learner, name="target", process="compute", memory=beside))
    # Labels take eight bytes.
    return stages, sum(values) + number * (8 + 4 * numbers)


def time_images(opened: Pretrained, report: Callable[[str], None]) -> dict[str, float]:
    """Return seconds per image of each kind of work."""
    config, workspace, dataset = opened.config, opened.workspace, opened.data
    model, clock = workspace.new_model(config), list[float]()
    some, state = _spread(dataset, workspace.batch_size), copy_to_cpu(model.state_dict())
    inputs, ids = model_inputs(workspace, config), _spread(dataset, STEP_IMAGES)
    report("timing a batch of training")
    steps = {"num_minibatches": 1, "num_steps": 2, "batch_size": len(ids), "num_snapshots": 0}
    short = config.model_copy(update={"learners": config.learners.model_copy(update=steps)})
    # Called at every step.
    opened.on_progress = lambda _: clock.append(perf_counter())
    workspace.train_learner(short, inputs, state, 0, ids, config.pruning.density_max)
    rates = {"trained": (clock[1] - clock[0]) / len(ids)}
    report("timing a batch of evaluation")
    evaluator = evaluator_of(workspace, config, inputs, some)
    with computation(1):
        rates["evaluated"] = _second_time(lambda: evaluator.score(state)) / len(some)
    report("timing a batch of scoring")
    batches = workspace.batches(inputs, "timing", some=some)
    of_texts = dataset.target.kind is TargetKind.TOKENS
    values = ScoredValues.LOSSES_AND_FEATURES if of_texts else ScoredValues.SIGNALS
    with computation(config.evaluation_threads):
        rates["scored"] = _second_time(lambda: compute_values(model, batches, values)) / len(some)
    return rates


def lines_of(estimate: Estimate) -> list[str]:
    """Format an estimate: a table of stages, and totals."""
    rows = [
        (
            *(stage.name, stage.process),
            "-" if stage.seconds is None else f"{stage.seconds:,.1f}",
            format_bytes(stage.memory_bytes),
            f"{stage.images:,} {stage.work}" if stage.images else "-",
        )
        for stage in estimate.stages
    ]
    to, back = format_bytes(estimate.bytes_to_workers), format_bytes(estimate.bytes_from_workers)
    run, signals = format_bytes(estimate.run_disk_bytes), format_bytes(estimate.signals_bytes)
    seconds = [stage.seconds for stage in estimate.stages if stage.seconds is not None]
    besides = "files, the network, near-duplicates, single gradients and the strategy itself"
    total = f"{sum(seconds):,.1f} s, without {besides}: {estimate.strategy_cost}"
    return [
        *(estimate.subject, ""),
        *table_lines(("stage", "process", "seconds", "memory", "images"), rows),
        "",
        *(
            [f"Fitted to the data: {estimate.lowered_defaults}"]
            if estimate.lowered_defaults
            else []
        ),
        f"To workers {to}, from workers at most {back}.",
        f"On disk at most {run} of the run, and {signals} of signals.",
        f"All images take {total}." if seconds else "Nothing was timed.",
        *(f"A coordinator here with default limits refuses it: {why}" for why in estimate.refused),
    ]


def _spread(dataset: Dataset, number: int) -> Tensor:
    return torch.linspace(0, len(dataset) - 1, min(number, len(dataset))).long()


def _second_time(work: Callable[[], object]) -> float:
    # Libraries choose their kernels in the first call.
    work()
    began = perf_counter()
    work()
    return perf_counter() - began
