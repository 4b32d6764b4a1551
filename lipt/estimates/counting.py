"""Counting: images, evaluations, bytes and memory of a run's stages; pure functions.

Shapes in words: n learners, M minibatches of B examples, K steps, V validation examples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lipt.common.config.run_config import PruningMethod, RunConfig, SoupMethod, WeightEncoding
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning.costs import Cost
from lipt.common.planning.learner import PROCESS_BYTES
from lipt.common.weights.specs import TensorSpec
from lipt.coordinator.planning.plan import DataFigures, plan_run
from lipt.core.evaluators import num_evaluated_together
from lipt.core.initialization import num_initialization_steps
from lipt.core.sharding import draw_densities, num_validation_examples
from lipt.core.soup import Ratios
from lipt.estimates.work import Process, Range, Stage, Task, exactly

# Of planes, against the bitmask: measured on a ResNet-18, in docs/benchmarks.md.
_ENCODED = {
    WeightEncoding.BITMASK: 1.0,
    WeightEncoding.PLANES: 0.82,
    WeightEncoding.BFLOAT16_PLANES: 0.34,
}
# A shard's file besides its examples.
_SHARD_HEADER_BYTES = 160
# Of a file of weights, for each tensor: names, types and places.
_TENSOR_HEADER_BYTES = 130
# The database, whose log is as long as a few transactions.
_DATABASE_BYTES = 350_000
_FLOAT_BITS = 32
# The shard in the worker's cache, the result at the coordinator, and the record of it.
_STORED_FOR_A_LEARNER = 3


@dataclass(frozen=True)
class Machine:
    """Where it is to run.

    Attributes:
        num_workers: that train at a time.
        num_cores: that workers on this machine share; None where each has one of its own.
        process_bytes: of a process with torch that has done nothing yet.
    """

    num_workers: int
    num_cores: int | None
    process_bytes: int


@dataclass(frozen=True)
class Subject:
    """What is known of the data and the model.

    Attributes:
        data: examples by class, and what each of them is.
        figures: what the model takes.
        sent: of its tensors those that learners train and hand in.
        prunable: of these, what they drop weights of.
        num_features: that enter its head.
        pooled_features: of those and of its last feature map in quarters.
        has_batch_norm: whether statistics are estimated again.
        in_memory: whether examples lie in memory as they are stored.
        packed_bytes: of an example in a shard, its target included.
        batch_size: examples per forward pass on the coordinator.
    """

    data: DataFigures
    figures: ModelFigures
    sent: Mapping[str, TensorSpec]
    prunable: Collection[str]
    num_features: int
    pooled_features: int
    has_batch_norm: bool
    in_memory: bool
    packed_bytes: float
    batch_size: int


def count_run(config: RunConfig, subject: Subject, machine: Machine) -> tuple[Stage, ...]:
    """The stages up to theta_p.

    Args:
        config: of the run, fitted to the data.
        subject: the data and the model.
        machine: where it runs.
    """
    counter = _Counter(config, subject, machine)
    return (
        counter.index(),
        counter.initialization(),
        counter.shards(),
        counter.learners(),
        counter.soup(),
    )


def num_trained_images(config: RunConfig) -> int:
    """Images that all learners train on; an attempt for each."""
    learners = config.learners
    shard = learners.num_minibatches * learners.batch_size
    each = learners.num_steps * shard
    # A gradient of one minibatch.
    scored = learners.batch_size if config.pruning.method is PruningMethod.SNIP else 0
    return learners.num_learners * learners.redundancy * (each + scored)


def num_evaluations(config: RunConfig) -> Range:
    """Weights that are scored for the soup, theta* among them: at least, and at the most."""
    number, soup = config.learners.num_learners, config.soup
    if soup.method is SoupMethod.UNIFORM:
        return exactly(number + 2)
    ratios = Ratios(soup.num_alphas, soup.search)
    # Where nothing helps a coarse search has nothing to refine.
    fewest = len(ratios.stages()[0](0))
    tried = number - 1
    return Range(1 + number + tried * fewest, 1 + number + tried * ratios.most)


def result_bytes(
    specs: Mapping[str, TensorSpec],
    prunable: Collection[str],
    density: float,
    encoding: WeightEncoding,
) -> int:
    """What a pruned learner takes as it travels.

    Args:
        specs: of what it hands in.
        prunable: of these, the tensors that weights are dropped of.
        density: share of their weights that is kept.
        encoding: how it travels.
    """
    header = _TENSOR_HEADER_BYTES * len(specs)
    total = sum(spec.num_bytes for spec in specs.values())
    pruned = sum(specs[name].num_bytes for name in prunable)
    # A mask pays where it takes less than what was dropped.
    dropped = max(0.0, (1 - density - 1 / _FLOAT_BITS) * pruned)
    return header + round((total - dropped) * _ENCODED[encoding])


class _Counter:
    def __init__(self, config: RunConfig, subject: Subject, machine: Machine) -> None:
        self._config, self._subject, self._machine = config, subject, machine
        data = subject.data
        size = subject.batch_size
        self._plan = plan_run(config, subject.figures, data, evaluation_batch_size=size)
        self._held_out = num_validation_examples(data.class_counts, config.validation)
        self._num_train = data.num_examples - self._held_out
        header = _TENSOR_HEADER_BYTES * len(subject.sent)
        self._weights_bytes = subject.figures.weights_bytes + header
        learners = config.learners
        self._shard_examples = learners.num_minibatches * learners.batch_size
        each = self._shard_examples * subject.packed_bytes
        self._shards_bytes = learners.num_learners * round(each + _SHARD_HEADER_BYTES)

    def index(self) -> Stage:
        data = self._subject.data
        return Stage(
            "index",
            Process.COMPUTE,
            {Task.OPENING: exactly(1)},
            counted=f"{data.num_examples:,} examples",
            memory_bytes=self._machine.process_bytes + data.resident_bytes,
        )

    def initialization(self) -> Stage:
        config = self._config.initialization
        steps = num_initialization_steps(config, self._num_train)
        images = steps * min(config.batch_size, self._num_train)
        work = {Task.FIGURES: exactly(1), Task.BUILDING: exactly(1), Task.STORING: exactly(1)}
        if images:
            work |= self._read(images) | {Task.TRAINING: exactly(images)}
        return Stage(
            "theta*",
            Process.COMPUTE,
            work,
            counted=f"{images:,} images trained" if images else "random or given weights",
            disk_bytes=self._weights_bytes,
            memory_bytes=self._beside_the_process(self._plan.compute_memory[0]),
        )

    def shards(self) -> Stage:
        learners = self._config.learners
        examples = learners.num_learners * self._shard_examples
        return Stage(
            "shards",
            Process.COMPUTE,
            {Task.PACKING: exactly(examples), Task.STORING: exactly(learners.num_learners)},
            counted=f"{learners.num_learners} of {self._shard_examples:,} examples",
            disk_bytes=self._shards_bytes,
            memory_bytes=self._beside_the_process(self._plan.compute_memory[1]),
        )

    def learners(self) -> Stage:
        config, learners = self._config, self._config.learners
        number = learners.num_learners * learners.redundancy
        images = num_trained_images(config)
        work = {
            Task.TRAINING: exactly(images),
            Task.BUILDING: exactly(number),
            Task.FINISHING: exactly(number),
            Task.STORING: exactly(_STORED_FOR_A_LEARNER * number),
        }
        results = self._results_bytes()
        # theta* is fetched once by every worker, a shard for every learner.
        fetched = (
            min(self._machine.num_workers, number) * self._weights_bytes
            + learners.redundancy * self._shards_bytes
        )
        return Stage(
            "learners",
            Process.WORKER,
            work | self._read(number * self._shard_examples),
            counted=f"{number} of {images // number:,} images trained",
            moved_bytes=fetched + learners.redundancy * results,
            disk_bytes=results,
            memory_bytes=self._beside_the_process(self._plan.worker_memory[0]),
            at_once=learners_at_once(number, self._machine, learners.cpu_threads),
        )

    def soup(self) -> Stage:
        subject, config = self._subject, self._config
        mends = config.soup.reestimate_batch_norm and subject.has_batch_norm
        statistics = min(config.soup.batch_norm_examples, self._num_train) if mends else 0
        evaluations = num_evaluations(config)
        images = exactly(self._held_out + statistics)
        together = num_evaluated_together(config)
        cores = self._machine.num_cores
        return Stage(
            "soup",
            Process.COMPUTE,
            {
                Task.EVALUATING: evaluations.times(images),
                Task.MIXING: evaluations,
                Task.STORING: exactly(1),
                **self._read(self._held_out + statistics),
            },
            counted=f"{evaluations.high:.0f} evaluations of {images.high:,.0f} images at most",
            disk_bytes=self._weights_bytes + _DATABASE_BYTES,
            memory_bytes=self._beside_the_process(self._plan.compute_memory[2]),
            at_once=together if cores is None else min(together, cores),
        )

    def _results_bytes(self) -> int:
        """Of all learners, and their snapshots."""
        config, subject = self._config, self._subject
        learners = config.learners
        prunes = config.pruning.method is not PruningMethod.NONE
        densities = draw_densities(learners.num_learners, config.pruning, seed=config.seed)

        def result(density: float) -> int:
            return result_bytes(subject.sent, subject.prunable, density, learners.encoding)

        results = sum(result(density if prunes else 1.0) for density in densities)
        return results + learners.num_learners * learners.num_snapshots * result(1.0)

    def _read(self, examples: int) -> dict[Task, Range]:
        """What reading takes where examples do not lie in memory."""
        return {} if self._subject.in_memory else {Task.READING: exactly(examples)}

    def _beside_the_process(self, cost: Cost) -> int:
        """A plan's memory, with the process as large as it is here."""
        return cost.total - PROCESS_BYTES + self._machine.process_bytes


def learners_at_once(number: int, machine: Machine, threads: int) -> float:
    """How many learners are trained side by side, in the mean.

    Args:
        number: of learners.
        machine: says how many workers there are, and what they share.
        threads: of each learner.
    """
    rounds = -(-number // machine.num_workers)
    together = number / rounds
    if machine.num_cores is None:
        return together
    return min(together, max(1.0, machine.num_cores / threads))
