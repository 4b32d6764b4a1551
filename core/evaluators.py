"""Evaluators: several candidates of a soup scored in one pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import pinned_kernels
from lipt.common.inputs.model_input import num_stored
from lipt.common.inputs.specs import Inputs, arguments_of, logits_of
from lipt.common.models.footprint import LiveTensors
from lipt.common.models.head import evaluation_mode
from lipt.common.weights.specs import Weights, copy_to_cpu
from lipt.core.batch_norm import (
    named_statistics,
    reestimate_batch_norm,
    reset_statistics,
)
from lipt.core.evaluation import Evaluator, Scored
from lipt.core.soup import Evaluate, OpenWeights

# Stacked evaluation: the mixtures of a learner go through the model together, in one pass.
#
# Their weights lie stacked along a first dimension, and `vmap` runs the model over them: a batch is
# read once, and a GPU is given one large operation where it had many small ones. Convolutions
# become grouped ones, which compute as much as before: a CPU gains nothing by it. What is
# estimated, and on which batches, is the same as one at a time; sums may be taken in another order.
#
# How many go together depends on the model and a constant, not on what memory happens to be free:
# one seed gives one soup on one kind of device.
#
# Shapes: G mixtures of a group, B examples of a batch, T outputs.

logger = logging.getLogger(__name__)

# Of a group's weights and of what lives while a batch passes. Nine ResNet-18 on 256 images of
# 32x32 take about as much.
_MOST_STACKED_BYTES = 4 * 1024**3
# A grouped convolution rearranges what it is given into a copy.
_COPIES = 2
# What sums in another order may differ by, of the largest output; other weights differ by more.
_TOLERANCE = 1e-2


@dataclass
class StackedEvaluator:
    """Scores several weights together, as `Evaluator` does one after another.

    A model that `vmap` cannot run, or does not run as it runs alone, is evaluated one at a time:
    that is decided once, by trying, and logged.

    Attributes:
        evaluator: whose model, batches and target these are. Its model's weights change.
        most_bytes: what a group may take; at least one goes in any case.
    """

    evaluator: Evaluator
    most_bytes: int = _MOST_STACKED_BYTES
    _works: bool | None = field(default=None, init=False)

    def __call__(self, weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
        """Scores in the order of the weights.

        Args:
            weights: each is asked for each tensor once, and none is kept.
            floor: a group all of which turn out not to be above it is given up.
        """
        for start in range(0, len(weights), self._group_size):
            yield from self._scored(weights[start : start + self._group_size], floor)

    def _scored(self, group: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
        if len(group) > 1 and self._works is not False:
            try:
                return iter(self._together([opened() for opened in group], floor))
            except Exception as error:  # noqa: BLE001 - what is wrong with it is seen one at a time
                self._works = False
                logger.info(
                    "mixtures are evaluated one at a time, as %s cannot be run stacked: %s",
                    type(self.evaluator.model).__name__,
                    str(error).partition("\n")[0],
                )
        return (self.evaluator(opened(), floor) for opened in group)

    @torch.no_grad()
    def _together(self, group: Sequence[Mapping[str, Tensor]], floor: float) -> list[Scored]:
        stacked = self._stack(group)
        mended = self._mend(stacked)
        if self._works is None:
            self._require_agreement(stacked, group[0])
            self._works = True
        scores = self._scores(stacked, floor)
        return [Scored(score, mended(number)) for number, score in enumerate(scores)]

    def _stack(self, group: Sequence[Mapping[str, Tensor]]) -> Weights:
        """On the model's device; what is the same in all goes into the model itself."""
        stacked, differing = Weights(), set(self._places.values())
        for name, tensor in self.evaluator.model.state_dict().items():
            if name not in differing:
                tensor.copy_(group[0][name])
                continue
            stacked[name] = tensor.new_empty((len(group), *tensor.shape))
            # One after another: a mixture is a tensor in the making.
            for place, weights in enumerate(group):
                stacked[name][place].copy_(weights[name])
        return stacked

    def _mend(self, stacked: Weights) -> _Mended:
        """Estimate each one's batch-norm statistics, in the stack."""
        evaluator = self.evaluator
        model, frozen = evaluator.model, evaluator.frozen
        if not evaluator.mends:
            return _Mended({}, {})
        names = {id(buffer): name for name, buffer in model.named_buffers()}
        # By all of their names, of which a layer that occurs twice has two.
        own = {name: names[id(buffer)] for name, buffer in named_statistics(model, frozen).items()}
        reset_statistics({name: stacked[name] for name in own.values()})
        with pinned_kernels():
            reestimate_batch_norm(
                model,
                evaluator.batch_norm_batches,
                frozen,
                call=lambda _model, inputs_B: self._outputs(stacked, inputs_B),
            )
        return _Mended(copy_to_cpu({name: stacked[name] for name in own.values()}), own)

    def _scores(self, stacked: Weights, floor: float) -> list[float]:
        """Each one's score; -infinity once none of them can be above the floor any more."""
        evaluator = self.evaluator
        num_stacked, num_left = len(next(iter(stacked.values()))), len(evaluator.targets_N)
        tallies = [evaluator.target.tally() for _ in range(num_stacked)]
        with evaluation_mode(evaluator.model), pinned_kernels():
            for number, targets_B in enumerate(evaluator.targets):
                outputs_GBT = self._outputs(stacked, evaluator.batches[number])
                for tally, outputs_BT in zip(tallies, outputs_GBT, strict=True):
                    tally.add(outputs_BT, targets_B)
                num_left -= len(targets_B)
                # Asked only where there is a floor: it waits for the device.
                if floor > -math.inf and all(
                    tally.best_possible(num_left) <= floor for tally in tallies
                ):
                    return [-math.inf] * num_stacked
        return [tally.score() for tally in tallies]

    def _outputs(self, stacked: Weights, inputs_B: Inputs) -> Tensor:
        """G x B x T."""
        model = self.evaluator.model
        args, keywords = arguments_of(inputs_B)

        def run(weights: Weights) -> Tensor:
            own = {place: weights[name] for place, name in self._places.items()}
            # Not tied by it: of a layer that occurs twice it would leave some of them in the model.
            called = functional_call(model, own, args, keywords, tie_weights=False)
            return logits_of(called)

        outputs_GBT: Tensor = vmap(run)(stacked)
        return outputs_GBT

    def _require_agreement(self, stacked: Weights, first: Mapping[str, Tensor]) -> None:
        """Run the first of them as it is run alone.

        A layer that holds on to its weights would go unseen otherwise: it takes the model's own,
        which are not the first one's before this.

        Raises:
            RuntimeError: the outputs for a batch differ.
        """
        evaluator = self.evaluator
        with evaluation_mode(evaluator.model), pinned_kernels():
            stacked_BT = self._outputs(stacked, evaluator.batches[0])[0].nan_to_num()
            evaluator.take_on(first)
            alone_BT = evaluator.outputs(0).nan_to_num()
        off, most = (stacked_BT - alone_BT).abs().max(), alone_BT.abs().max()
        if not float(off) <= _TOLERANCE * float(most):
            raise RuntimeError(
                f"its outputs, of {float(most):.3g} at most, are off by {float(off):.3g} from "
                "those that it has alone"
            )

    @cached_property
    def _places(self) -> Mapping[str, str]:
        """Where in the model there is what differs, and the first name that it goes by."""
        model, frozen = self.evaluator.model, self.evaluator.frozen
        known = model.state_dict().keys() - frozen
        first = {id(item): name for name, item in _named(model)}
        return {
            name: first[id(item)]
            for prefix, layer in model.named_modules()
            for name, item in _named(layer, prefix, recurse=False, remove_duplicate=False)
            if first[id(item)] in known
        }

    @cached_property
    def _group_size(self) -> int:
        state = self.evaluator.model.state_dict()
        weights_bytes: int = sum(state[name].nbytes for name in set(self._places.values()))
        each = weights_bytes + _COPIES * self._passing_bytes()
        return int(max(1, self.most_bytes // max(1, each)))

    @torch.no_grad()
    def _passing_bytes(self) -> int:
        """What lives at once while the largest batch passes the model."""
        model, evaluator = self.evaluator.model, self.evaluator
        first = [evaluator.batches[0], *evaluator.batch_norm_batches[:1]]
        inputs_B = max(first, key=num_stored)
        args, keywords = arguments_of(inputs_B)
        with evaluation_mode(model), pinned_kernels(), LiveTensors() as live:
            model(*args, **keywords)
        peak_bytes: int = live.peak_bytes
        return peak_bytes


def _named(model: nn.Module, prefix: str = "", **how: bool) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(prefix, **how)
    yield from model.named_buffers(prefix, **how)


@dataclass(frozen=True)
class _Mended:
    """Statistics of a group on the CPU, and by which names each of them goes."""

    stacked: Weights
    names: Mapping[str, str]

    def __call__(self, number: int) -> Weights:
        """Those of one of the group, copies of its own."""
        return {name: self.stacked[own][number].clone() for name, own in self.names.items()}


# Evaluators: several weights scored at a time, each on a thread and a model of its own.
#
# Threads that share the work of each layer wait for each other at its end, several times as long as
# it takes where other processes use the cores as well; and how many there are decides the last bits
# of what they compute. A thread for each of several weights has none of that: scores and
# statistics are those that one thread comes to, however many there are.


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
