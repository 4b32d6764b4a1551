"""Choosing: passes, products, bytes and memory of a subset's signals and selection; pure.

Shapes in letters: N examples, C classes, d features, D of a proxy, k budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipt.common.config.run_config import RunConfig
from lipt.common.inputs.specs import ImageSpec
from lipt.common.planning.learner import INPUT_BYTES
from lipt.core.diagnosis.pictures import are_pictures
from lipt.core.proxies.choice import MAX_SAMPLE, candidates
from lipt.core.proxies.patches import NUM_FILTERS
from lipt.core.proxies.pooled import MAX_WIDTH
from lipt.core.proxies.proxy import Kind, Proxy
from lipt.core.selection.quotas import class_quotas
from lipt.core.selection.solvers.levels import MATRIX_BYTES, affordable_precision
from lipt.core.selection.strategy import Need, Strategy
from lipt.core.signals.stored import STORAGE_LIMITS
from lipt.estimates.counting import Machine, Subject
from lipt.estimates.letters import cost_in_numbers
from lipt.estimates.work import Process, Range, Stage, Task, exactly

_LOOKED_AT = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION})
# A thumbnail's numbers.
_THUMBNAIL = 64
_BILLION = 1e9
_FLOAT_BYTES = 4
# An index and a weight of a stored subset.
_CHOSEN_BYTES = 12
# On the wire, of a random subset; see `lipt.common.subsets`.
_BITS_BESIDES, _WEIGHT_BYTES = 2, 4
# Of a level, by how finely it is held.
_LEVEL_BYTES = {"24-bit": 4, "16-bit": 2, "8-bit": 1}


@dataclass(frozen=True)
class Choice:
    """What is asked for.

    Attributes:
        strategy: what chooses.
        options: all of its options' values.
        budget: how many are chosen.
        balanced: whether it sees one class at a time, or shares the budget among them.
        proxy: what judges the examples.
        num_learners: of the run, whose features a proxy may take.
    """

    strategy: Strategy
    options: Mapping[str, Any]
    budget: int
    balanced: bool
    proxy: Proxy
    num_learners: int

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be computed for it."""
        return self.strategy.needs_for(self.options)

    @property
    def by_class(self) -> bool:
        """Whether it is applied to one class after another."""
        return self.balanced and not self.strategy.balances_itself


def count_choice(
    choice: Choice, config: RunConfig, subject: Subject, machine: Machine
) -> tuple[Stage, ...]:
    """The stages from theta_p to a subset.

    Args:
        choice: what is asked for.
        config: of the run.
        subject: the data and the model.
        machine: where it runs.
    """
    return (
        _signals(choice, config, subject, machine),
        _selection(choice, subject, machine),
        _subset(choice, subject),
    )


def parts_of(choice: Choice, counts_C: Sequence[int]) -> list[tuple[int, int]]:
    """How many examples a strategy sees at a time, and how many it chooses of them."""
    if not choice.by_class:
        return [(sum(counts_C), choice.budget)]
    quotas = class_quotas(counts_C, choice.budget)
    return [(count, quota) for count, quota in zip(counts_C, quotas, strict=True) if quota]


def selection_cost(choice: Choice, subject: Subject, num_examples: int, budget: int) -> float:
    """What a strategy's declared cost comes to for one part, in units of its own."""
    data = subject.data
    letters = {
        "N": num_examples,
        "C": data.target.num_outputs,
        "d": num_features(choice, subject),
        "k": budget,
        "r": float(choice.options.get("rounds", 1)),
    }
    return cost_in_numbers(choice.strategy.cost, letters, choice.options)


def num_features(choice: Choice, subject: Subject) -> int:
    """The width of what a strategy looks at; the widest, where it is a choice among proxies."""
    if choice.proxy.is_own_head:
        return subject.num_features
    return max(_width(kinds, subject, choice.num_learners) for kinds in _proxies(choice, subject))


def _signals(choice: Choice, config: RunConfig, subject: Subject, machine: Machine) -> Stage:
    data, needs = subject.data, choice.needs
    number, outputs = data.num_examples, data.target.num_outputs
    work: dict[Task, Range] = {}
    one_of: tuple[Mapping[Task, Range], ...] = ()
    said: list[str] = []
    disk = memory = mapped = 0
    at_a_time = subject.figures.weights_bytes + subject.batch_size * (
        subject.figures.evaluation_bytes + INPUT_BYTES * data.example_bytes
    )
    looks = bool(needs & _LOOKED_AT)
    if looks and choice.proxy.is_own_head:
        _add(work, {Task.PASSING: number})
        said.append(f"{number:,} images passed")
        kept, mapped = _kept_bytes(number, outputs, subject.num_features)
        disk, memory = kept + mapped + 8 * number, kept
    elif looks:
        tried, one_of = _proxied(choice, subject)
        _add(work, tried)
        said.append("proxies tried, one of them taken" if tried else f"{choice.proxy}")
        width = num_features(choice, subject)
        values = _FLOAT_BYTES * number * (outputs + width)
        disk = values + 8 * number
        # Features, the sums of a head and what its equation is solved in, in float64.
        memory = values + 3 * 8 * min(number, width) ** 2
    if Need.GRADIENT_NORMS in needs:
        _add(work, {Task.DIFFERENTIATING: number})
        said.append(f"{number:,} gradients")
        disk += 12 * number
    if Need.DYNAMICS in needs:
        states = 1 + config.learners.num_learners * max(1, config.learners.num_snapshots)
        _add(work, {Task.PASSING: states * number})
        said.append(f"{states} states, {number:,} images each")
        disk += 2 * _FLOAT_BYTES * number * states
    if Need.COPIES in needs:
        _add(work, {Task.LOOKING: number})
        if are_pictures(data.inputs):
            _add(work, {Task.COMPARING: number**2 / 2 * _THUMBNAIL / _BILLION})
        said.append("near copies looked for")
        disk += 16 * number
        memory += 2 * _FLOAT_BYTES * _THUMBNAIL * number
    base = machine.process_bytes + data.resident_bytes
    return Stage(
        "signals",
        Process.COMPUTE,
        work,
        one_of,
        ", ".join(said) or "labels alone",
        disk_bytes=disk,
        memory_bytes=base + at_a_time + memory,
        mapped_bytes=mapped,
    )


def _kept_bytes(number: int, outputs: int, width: int) -> tuple[int, int]:
    """Bytes of errors and features: in memory, and in a file that is mapped into it."""
    limits, held, mapped = STORAGE_LIMITS, 0, 0
    for values, dtype in (
        (number * outputs, limits.error_dtype(number * outputs)),
        (number * width, limits.feature_dtype(number * width)),
    ):
        taken = values * dtype.itemsize
        if taken > limits.memory_bytes:
            mapped += taken
        else:
            held += taken
    return held, mapped


def _proxies(choice: Choice, subject: Subject) -> list[tuple[Kind, ...]]:
    if choice.proxy.features is not None:
        return [choice.proxy.features]
    inputs = subject.data.inputs
    there = {Kind.SOUP, Kind.LEARNERS}
    if are_pictures(inputs):
        there.add(Kind.PATCHES)
    if not isinstance(inputs, ImageSpec):
        there.add(Kind.COLUMNS)
    return candidates(there)


def _width(kinds: Sequence[Kind], subject: Subject, num_learners: int) -> int:
    pooled = min(subject.pooled_features, MAX_WIDTH)
    each = min(subject.pooled_features, max(1, MAX_WIDTH // num_learners))
    widths = {
        Kind.PATCHES: 8 * NUM_FILTERS,
        Kind.SOUP: pooled,
        Kind.INITIAL: pooled,
        Kind.LEARNERS: num_learners * each,
        Kind.COLUMNS: subject.data.example_bytes,
    }
    return sum(widths.get(kind, 0) for kind in kinds)


def _proxied(
    choice: Choice, subject: Subject
) -> tuple[dict[Task, float], tuple[Mapping[Task, Range], ...]]:
    """What trying all proxies takes, and what each would take, should it be the one."""
    number, possible = subject.data.num_examples, _proxies(choice, subject)
    num_learners = choice.num_learners
    sample, tried = min(number, MAX_SAMPLE), dict[Task, float]()

    def head(size: int, kinds: tuple[Kind, ...]) -> dict[Task, float]:
        return _head(size, _width(kinds, subject, num_learners))

    if len(possible) > 1:
        for kind in sorted({kind for kinds in possible for kind in kinds}):
            _sum(tried, _passes((kind,), sample, num_learners))
        for kinds in possible:
            _sum(tried, head(sample, kinds))
    every: list[Mapping[Task, Range]] = []
    for kinds in possible:
        # What was tried on all of a small set is not done again, but for a second head, which
        # there is where labels are wrong.
        again = not tried or sample < number
        heads = {
            task: Range(often * again, often * (again + 1))
            for task, often in head(number, kinds).items()
        }
        passes = _passes(kinds, number, num_learners) if again else {}
        every.append(heads | {task: exactly(often) for task, often in passes.items()})
    return tried, tuple(every)


def _add(work: dict[Task, Range], more: Mapping[Task, float]) -> None:
    for task, often in more.items():
        work[task] = work.get(task, exactly(0.0)) + exactly(often)


def _sum(work: dict[Task, float], more: Mapping[Task, float]) -> None:
    for task, often in more.items():
        work[task] = work.get(task, 0.0) + often


def _passes(kinds: Sequence[Kind], number: int, num_learners: int) -> dict[Task, float]:
    models = {Kind.SOUP: 1, Kind.INITIAL: 1, Kind.LEARNERS: num_learners}
    passed = sum(models.get(kind, 0) for kind in kinds)
    found = {Task.PASSING: float(passed * number)} if passed else {}
    return found | ({Task.PATCHING: float(number)} if Kind.PATCHES in kinds else {})


def _head(number: int, width: int) -> dict[Task, float]:
    """A ridge head's sums (half of a product, and one whole), its sample, its equation."""
    narrow = min(number, width)
    if number < width:
        products = float(number * number * width)
    else:
        products = (1.5 * number + min(number, MAX_SAMPLE)) * width**2
    return {Task.SUMMING: products / _BILLION, Task.DECOMPOSING: narrow**3 / _BILLION}


def _selection(choice: Choice, subject: Subject, machine: Machine) -> Stage:
    data = subject.data
    parts = parts_of(choice, data.class_counts)
    width = num_features(choice, subject) + data.target.num_outputs
    needs = choice.needs & _LOOKED_AT
    held = max(
        _held_bytes(choice, size, quota, data.target.num_outputs)
        + _FLOAT_BYTES * size * width * bool(needs)
        for size, quota in parts
    )
    largest = max(size for size, _ in parts)
    times = f"{len(parts)} times " if len(parts) > 1 else ""
    return Stage(
        "selection",
        Process.COMPUTE,
        {Task.SELECTING: exactly(1), Task.STORING: exactly(1)},
        counted=f"{times}{choice.strategy.name} of {largest:,}: {choice.strategy.cost}",
        disk_bytes=_CHOSEN_BYTES * choice.budget,
        memory_bytes=machine.process_bytes + data.resident_bytes + held,
    )


def _held_bytes(choice: Choice, size: int, quota: int, num_classes: int) -> int:
    """What a strategy holds besides the signals that it sees."""
    if choice.strategy.name == "gradmatch":
        group = int(choice.options["batch_size"])
        atoms = -(-quota // group) if choice.options["mode"] == "per_batch" else quota
        # The Gram matrix's inverse, a copy while it grows, and the products.
        return 3 * 8 * atoms * atoms
    if "N^2" not in choice.strategy.cost:
        return 0
    # It shares the budget out by itself, and then looks at one class at a time.
    pairs = size // num_classes if choice.strategy.balances_itself else size
    precision = affordable_precision(pairs, pairs, MATRIX_BYTES)
    return MATRIX_BYTES if precision is None else pairs * pairs * _LEVEL_BYTES[precision]


def _subset(choice: Choice, subject: Subject) -> Stage:
    """As it travels: an index in as many bits as it takes to say what is left out before it."""
    number, budget = subject.data.num_examples, choice.budget
    bits = math.log2(number / budget) + _BITS_BESIDES
    weights = _WEIGHT_BYTES * choice.strategy.returns_weights
    return Stage(
        "subset",
        Process.COORDINATOR,
        counted=f"{budget:,} examples",
        moved_bytes=round(budget * (bits / 8 + weights)),
    )
