"""Evaluators: several weights scored at a time, each on a thread and a model of its own.

Threads that share the work of each layer wait for each other at its end, several times as long as
it takes where other processes use the cores as well; and how many there are decides the last bits
of what they compute. A thread for each of several weights has none of that: scores and
statistics are those that one thread comes to, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import nn

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.kernels import pinned_kernels
from lipt.core.evaluation import Evaluator, Scored
from lipt.core.soup import Evaluate, OpenWeights
from lipt.core.stacked import StackedEvaluator


def num_evaluated_together(config: RunConfig) -> int:
    """How many weights a CPU scores at a time for a run's soup: no more than are asked for."""
    asked = max(config.learners.num_learners, config.soup.num_alphas - 1)
    return min(config.evaluation_threads, asked)


def evaluate_for_soup(
    evaluator: Evaluator, config: RunConfig, new_model: Callable[[], nn.Module]
) -> Evaluate:
    """Several at a time: on a CPU in threads, elsewhere in one pass of the model.

    Where the head alone differs there is no more to weights than their last layer, and one at a
    time will do.
    """
    if torch.device(evaluator.device).type == "cpu":
        number = num_evaluated_together(config)
        return Evaluators((evaluator, *(evaluator.twin(new_model()) for _ in range(1, number))))
    return StackedEvaluator(evaluator) if evaluator.head is None else Evaluators((evaluator,))


@dataclass(frozen=True)
class Evaluators:
    """Scores weights for a soup.

    Attributes:
        evaluators: twins of each other, at least one; as many weights are scored at a time.
    """

    evaluators: Sequence[Evaluator]

    def __call__(self, weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
        """Scores in the order of the weights; `floor` as for `Evaluator`."""
        if len(self.evaluators) == 1:
            yield from (self.evaluators[0](opened(), floor) for opened in weights)
            return
        free: SimpleQueue[Evaluator] = SimpleQueue()
        for evaluator in self.evaluators:
            free.put(evaluator)

        def score(opened: OpenWeights) -> Scored:
            evaluator = free.get()
            try:
                return evaluator(opened(), floor)
            finally:
                free.put(evaluator)

        # A thread begins with the number of threads that is pinned when it first computes.
        with pinned_kernels(1), ThreadPoolExecutor(len(self.evaluators)) as pool:
            yield from pool.map(score, weights)
