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
from lipt.core.selection.select import select
from lipt.core.selection.strategy import Need
from lipt.core.signals.device import place
from lipt.core.signals.signals import Signals
from lipt.estimates.choosing import Choice, num_features, parts_of, selection_cost
from lipt.estimates.clock import Stopwatch
from lipt.estimates.counting import Subject
from lipt.estimates.work import Range, exactly

# For what is made up per learner, or per pair, there is nothing to go by.
_UNTRIED = frozenset({Need.DYNAMICS, Need.PAIRED_FEATURES})
_FEWEST, _FIRST_SIZE = 64, 256
# After a trial that takes so long, or so many values, there is no larger one.
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


def try_strategy(
    choice: Choice,
    subject: Subject,
    *,
    num_validation: int,
    threads: int,
    device: torch.device,
) -> Range:
    """Seconds of the whole selection.

    Args:
        choice: what is asked for; see `can_be_tried`.
        subject: the data and the model.
        num_validation: examples of the validation split.
        threads: that the run's selection has.
        device: where it computes.
    """
    parts = parts_of(choice, subject.data.class_counts)
    largest = max(parts)
    # Of the validation split those of its own class, where it sees one.
    bench = _Bench(choice, subject, largest, num_validation // len(parts), threads, device)
    # The first time loads what is compiled, as it will in the run.
    first, again = (bench.trial(_FEWEST).seconds for _ in range(2))
    trials: list[Trial] = []
    for size in _sizes(largest[0]):
        trials.append(bench.trial(size))
        values = size * num_features(choice, subject)
        if trials[-1].seconds.high > _MOST_SECONDS or values > _MOST_VALUES:
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


@dataclass(frozen=True)
class _Bench:
    """Where a strategy is tried: on some examples of the largest part that it will see.

    Attributes:
        choice: what is asked for.
        subject: the data and the model.
        largest: examples of that part, and how many of them are chosen.
        num_validation: examples of the validation split beside it.
        threads: that the selection has.
        device: where it computes.
    """

    choice: Choice
    subject: Subject
    largest: tuple[int, int]
    num_validation: int
    threads: int
    device: torch.device

    def trial(self, size: int) -> Trial:
        """What so many examples take, of which as large a share is chosen."""
        choice, (most, quota) = self.choice, self.largest
        size = min(size, most)
        budget = min(size, max(1, round(quota * size / most)))
        signals = self._signals(size, max(1, self.num_validation * size // most))
        with pinned_kernels(self.threads):
            watch = Stopwatch()
            select(
                choice.strategy,
                place(signals, self.device),
                budget,
                balanced=choice.balanced,
                seed=_SEED,
                options=choice.options,
            )
            seconds = watch.seconds(self.threads)
        return Trial(selection_cost(choice, self.subject, size, budget), seconds)

    def _signals(self, size: int, num_validation: int) -> Signals:
        """As those of a model that knows nothing; of one class where the strategy sees one."""
        generator = torch.Generator().manual_seed(_SEED)
        made = self._made_up(size, generator)
        if Need.VALIDATION not in self.choice.needs:
            return made
        return replace(made, validation=self._made_up(num_validation, generator))

    def _made_up(self, number: int, generator: torch.Generator) -> Signals:
        choice, data = self.choice, self.subject.data
        num_labels = 1 if choice.by_class else len(data.class_counts)
        labels_N = torch.randint(num_labels, (number,), generator=generator)
        rows, num_outputs = torch.arange(number), data.target.num_outputs
        errors_NC = torch.randn(number, num_outputs, generator=generator).softmax(dim=-1)
        errors_NC[rows, labels_N % num_outputs] -= 1
        width = num_features(choice, self.subject)
        return Signals(
            errors_NC,
            torch.randn(number, width, generator=generator).relu_(),
            labels_N,
            gradient_norms_N=torch.rand(number, generator=generator),
            pictures_N=rows,
            kind=data.target.kind,
        )
