"""Trials: a strategy's seconds on made-up signals of growing size, and what that says of more.

Signals have the shape of the data's own, not its structure: what a lazy algorithm saves, and where
a pursuit ends, depends on the data. So what comes of sizes that were not tried is a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lipt.common.determinism.kernels import pinned_kernels
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategy import Need
from lipt.coordinator.signals.signals import Signals
from lipt.estimates.choosing import Choice, num_features, parts_of, selection_cost
from lipt.estimates.clock import Stopwatch
from lipt.estimates.counting import Subject
from lipt.estimates.work import Range, exactly

# For what is made up per learner, or per pair, there is nothing to go by.
_UNTRIED = frozenset({Need.DYNAMICS, Need.PAIRED_FEATURES})
_FEWEST, _FIRST_SIZE = 64, 256
# The next size is four times the work of this one, or more.
_MOST_SECONDS = 1.5
_MOST_VALUES = 2**26
_SEED = 0
# Of a cost: what seconds may grow with.
_FLATTEST, _STEEPEST = 0.5, 2.0


@dataclass(frozen=True)
class Trial:
    """What one part took.

    Attributes:
        cost: as the strategy declares it, in units of its own.
        seconds: of the whole selection.
    """

    cost: float
    seconds: Range


def can_be_tried(choice: Choice) -> bool:
    """Whether signals can be made up for it."""
    return not choice.needs & _UNTRIED


def try_strategy(choice: Choice, subject: Subject, *, num_validation: int, threads: int) -> Range:
    """Seconds of the whole selection.

    Args:
        choice: what is asked for; see `can_be_tried`.
        subject: the data and the model.
        num_validation: examples of the validation split.
        threads: that the run's selection has.
    """
    parts = parts_of(choice, subject.data.class_counts)
    # Those of its own class, where it sees one.
    num_validation //= len(parts)
    largest = max(parts)
    trials: list[Trial] = []
    # The first time loads what is compiled, as it will in the run.
    first, again = (
        _tried(choice, subject, _FEWEST, largest, num_validation, threads).seconds for _ in range(2)
    )
    for size in _sizes(largest[0]):
        if size * num_features(choice, subject, num_learners=1) > _MOST_VALUES:
            break
        trials.append(_tried(choice, subject, size, largest, num_validation, threads))
        if trials[-1].seconds.high > _MOST_SECONDS:
            break
    loading = max(0.0, first.low - again.low)
    total = Range(loading, max(loading, first.high - again.high))
    for size, quota in parts:
        total += extrapolated(trials, selection_cost(choice, subject, size, quota))
    return total


def extrapolated(trials: Sequence[Trial], cost: float) -> Range:
    """Seconds for a cost, by what trials of smaller ones took; a pure function.

    The last trial's seconds grow with the cost itself, or as they grew from the trial before, but
    no slower than with the cost's square root.

    Args:
        trials: of rising costs, at least one.
        cost: in the same units.
    """
    last = trials[-1]
    grown = cost / last.cost
    if grown <= 1 or len(trials) < 2:
        return last.seconds.times(exactly(grown))
    before = trials[-2]
    # By what was computed, which others on the machine do not change.
    power = math.log(last.seconds.low / before.seconds.low) / math.log(last.cost / before.cost)
    by_growth = grown ** min(_STEEPEST, max(_FLATTEST, power))
    return last.seconds.times(Range(min(grown, by_growth), max(grown, by_growth)))


def _sizes(largest: int) -> list[int]:
    sizes = []
    size = _FIRST_SIZE
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]


def _tried(
    choice: Choice,
    subject: Subject,
    size: int,
    largest: tuple[int, int],
    num_validation: int,
    threads: int,
) -> Trial:
    size = min(size, largest[0])
    budget = min(size, max(1, round(largest[1] * size / largest[0])))
    signals = _made_up(choice, subject, size, max(1, num_validation * size // largest[0]))
    with pinned_kernels(threads):
        watch = Stopwatch()
        select(
            choice.strategy,
            signals,
            budget,
            balanced=choice.balanced,
            seed=_SEED,
            options=choice.options,
        )
        seconds = watch.seconds(threads)
    return Trial(selection_cost(choice, subject, size, budget), seconds)


def _made_up(choice: Choice, subject: Subject, size: int, num_validation: int) -> Signals:
    """Signals as those of a model that has learned a little; of one class where it sees one."""
    generator = torch.Generator().manual_seed(_SEED)
    target = subject.data.target
    width = num_features(choice, subject, num_learners=1)

    def signals(number: int) -> Signals:
        labels_N = torch.randint(
            1 if choice.by_class else len(subject.data.class_counts), (number,), generator=generator
        )
        logits_NC = torch.randn(number, target.num_outputs, generator=generator)
        errors_NC = logits_NC.softmax(dim=-1)
        rows = torch.arange(number)
        own_N = labels_N % target.num_outputs
        errors_NC[rows, own_N] -= 1
        return Signals(
            errors_NC,
            torch.randn(number, width, generator=generator).relu_(),
            labels_N,
            gradient_norms_N=torch.rand(number, generator=generator),
            pictures_N=rows,
            kind=target.kind,
        )

    made = signals(size)
    if Need.VALIDATION not in choice.needs:
        return made
    return replace(made, validation=signals(num_validation))
