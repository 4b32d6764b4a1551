"""Scores for a soup from a function of one model's weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from lipt.core.pretraining.evaluation import OpenWeights, Scored
from lipt.core.pretraining.soup import Evaluate


def one_by_one(score: Callable[[Mapping[str, Tensor]], Scored]) -> Evaluate:
    def evaluate(weights: Sequence[OpenWeights], _floor: float) -> Iterator[Scored]:
        for opened in weights:
            yield score(opened())

    return evaluate
