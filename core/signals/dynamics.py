"""Dynamics: the learners' outputs for every example during training, and statistics over them.

Strategies that watch training (forgetting, AUM, DUAL) were made for tens of epochs; here they watch
the states of n learners. All share theta*, which counts once. A learner is confident about its
training examples even with wrong labels, so it does not count for them, unless it is the only one.

Shapes: N examples, B of a batch, C classes, L learners, T moments of each (theta* first).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.computation import computation
from lipt.common.tensor_files import Weights
from lipt.core.kept_values import KeptValue
from lipt.core.passes import Batches, Read, require_finite_rows, results_on_cpu, row_blocks
from lipt.core.pretraining.evaluation import OpenWeights, batch_norm_inputs, load_with_statistics
from lipt.core.signals.views import Need, View
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import Inputs, call_model
from lipt.models.head import evaluation_mode

# Bytes of examples kept in memory while all states process them.
_BLOCK_BYTES = 512 * 1024**2
# Minimum number of learners for a variance.
_NUM_TO_DISAGREE = 2


@dataclass(frozen=True)
class Dynamics(View, KeptValue):
    """Outputs of L learners at T moments for N examples, float32.

    A learner's first moment is theta*, its last one the state before pruning if the run took
    snapshots, else its result.

    probabilities_NLT: of the example's own label.
    margins_NLT: the logit of the own label minus the largest other one.
    error_norms_NL: |softmax - onehot| at the last moment.
    disagreement_N: the unbiased variance of the softmax among the counted learners, at their last
    moment, summed over classes. The example's own learner counts if there are not two others.
    own_learner_N: index of the learner that was trained on the example; -1 for none. int16.
    """

    need = Need.DYNAMICS
    part = "dynamics"
    words = "{} of the learners"
    remedy = "Only a run with learners has them, on its own weights: leave `weights` unset."

    probabilities_NLT: Tensor
    margins_NLT: Tensor
    error_norms_NL: Tensor
    disagreement_N: Tensor
    own_learner_N: Tensor

    @property
    def counted_NL(self) -> Tensor:
        return counted_learners(self.own_learner_N, self.error_norms_NL.shape[1])


def counted_learners(own_learner_N: Tensor, num_learners: int, *, num_needed: int = 1) -> Tensor:
    """Which learners count: all but the example's own if over `num_needed`; N x L, bool."""
    learners_L = torch.arange(num_learners, device=own_learner_N.device)
    if num_learners <= num_needed:
        return learners_L.new_ones(len(own_learner_N), num_learners, dtype=torch.bool)
    return own_learner_N[:, None] != learners_L


def mean_over_moments(values_NLT: Tensor, counted_NL: Tensor) -> Tensor:
    """The mean over theta*, once, and the other states of counted learners; N, float64."""
    return _mean(_moments(values_NLT, counted_NL))


def deviation_over_moments(values_NLT: Tensor, counted_NL: Tensor, means_N: Tensor) -> Tensor:
    """The population standard deviation around their `mean_over_moments`; N, float64."""
    moments = _moments(values_NLT, counted_NL)
    return _mean(
        ((values_N - means_N).square(), counted_N) for values_N, counted_N in moments
    ).sqrt()


def mean_over_learners(values_NL: Tensor, counted_NL: Tensor) -> Tensor:
    """The mean over counted learners, at least one for each example; N, float64."""
    columns = zip(values_NL.unbind(dim=1), counted_NL.unbind(dim=1), strict=True)
    return _mean((values_N.double(), counted_N) for values_N, counted_N in columns)


def _moments(values_NLT: Tensor, counted_NL: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    _, num_learners, num_moments = values_NLT.shape
    yield values_NLT[:, 0, 0].double(), torch.ones_like(counted_NL[:, 0])
    for learner in range(num_learners):
        for moment in range(1, num_moments):
            yield values_NLT[:, learner, moment].double(), counted_NL[:, learner]


def _mean(parts: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    values_N, counted_N = next(parts)
    total_N, number_N = values_N.where(counted_N, 0), counted_N.long()
    for values_N, counted_N in parts:
        total_N += values_N.where(counted_N, 0)
        number_N += counted_N
    return total_N / number_N


@dataclass(frozen=True)
class States:
    """theta* and each learner's states in the order of training, equally many."""

    initial: OpenWeights
    learners: tuple[tuple[OpenWeights, ...], ...]

    def __iter__(self) -> Iterator[tuple[slice, int, OpenWeights, str]]:
        """Each state's learners (all for theta*), moment, weights, and description."""
        yield slice(None), 0, self.initial, "outputs with the initial weights"
        for learner, loaders in enumerate(self.learners):
            for moment, load in enumerate(loaders, start=1):
                words = f"outputs as state {moment} of {len(loaders)} of learner {learner}"
                yield slice(learner, learner + 1), moment, load, words


def compute_dynamics(
    model: nn.Module,
    states: States,
    batches: Batches,
    *,
    own_learner_N: Tensor,
    batch_norm_examples_M: Stored | None,
    frozen: frozenset[str] = frozenset(),
) -> Dynamics:
    """One forward pass over the examples for every state, in evaluation mode.

    Batch-norm statistics are estimated on `batch_norm_examples_M` for each state, except `frozen`
    ones; None uses the states' own. Progress counts pairs of example and state.
    """
    num_examples, num_learners = len(batches), len(states.learners)
    shape_NLT = (num_examples, num_learners, 1 + len(states.learners[0]))
    dynamics = Dynamics(
        probabilities_NLT=torch.empty(shape_NLT),
        margins_NLT=torch.empty(shape_NLT),
        error_norms_NL=torch.empty(num_examples, num_learners),
        disagreement_N=torch.empty(num_examples),
        own_learner_N=own_learner_N,
    )
    estimate_on = None
    if batch_norm_examples_M is not None:
        of_run = (batch_norm_examples_M, batches.inputs, batches.device)
        estimate_on = partial(batch_norm_inputs, *of_run, batch_size=batches.size)
    runner = _StateRunner(model, states, batches, dynamics, estimate_on, frozen)
    # An example, and two float64 numbers per class: the mean, and its update.
    row_bytes = batches.dataset.inputs.num_bytes + 16 * len(batches.dataset.class_names)
    with evaluation_mode(model), computation():
        # Whole batches, so that a block's size changes no batch.
        rows = list(row_blocks(num_examples, 1, batches.size))
        for block in row_blocks(len(rows), row_bytes * batches.size, _BLOCK_BYTES):
            with batches.reading(rows[block]) as reads:
                runner.run(list(reads))
    return dynamics


def margins_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The logit of the own label minus the largest other one, 1 with a single class; N."""
    if logits_NC.shape[-1] == 1:
        return torch.ones_like(logits_NC[:, 0])
    own_N1 = logits_NC.gather(1, labels_N[:, None])
    others_NC = logits_NC.scatter(1, labels_N[:, None], -math.inf)
    return own_N1.squeeze(1) - others_NC.amax(dim=-1)


@dataclass
class _StateRunner:
    model: nn.Module
    states: States
    batches: Batches
    dynamics: Dynamics
    estimate_on: Callable[[], Iterator[Inputs]] | None
    frozen: frozenset[str]
    num_viewed: int = 0
    # By the state's description, reused by the next block.
    statistics: dict[str, Weights] = field(default_factory=dict)

    def run(self, block: list[Read]) -> None:
        """Fill in the rows of some batches."""
        dynamics, learners = self.dynamics, self.states.learners
        variances = [_Variance() for _ in block]
        counted_NL = counted_learners(
            dynamics.own_learner_N, len(learners), num_needed=_NUM_TO_DISAGREE
        )
        for which, moment, load, words in self.states:
            self.statistics[words] = load_with_statistics(
                self.model, load(), self.statistics.get(words), self.estimate_on, self.frozen
            )
            is_last = moment == len(learners[0])
            counted_N = counted_NL[:, which.start or 0] if is_last else None
            figures = self._figures(block, variances, counted_N)
            for rows, (finite_B, own_B, margins_B, norms_B) in results_on_cpu(figures):
                require_finite_rows(finite_B, self.batches.ids_N[rows], words)
                dynamics.probabilities_NLT[rows, which, moment] = own_B[:, None]
                dynamics.margins_NLT[rows, which, moment] = margins_B[:, None]
                if is_last:
                    dynamics.error_norms_NL[rows, which] = norms_B[:, None]
        for read, variance in zip(block, variances, strict=True):
            dynamics.disagreement_N[read.rows] = variance.unbiased_B().float().cpu()

    def _figures(
        self, block: list[Read], variances: list[_Variance], counted_N: Tensor | None
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Each batch's finiteness, own probabilities, margins, error norms; adds to variances."""
        dataset, ids_N, device = self.batches.dataset, self.batches.ids_N, self.batches.device
        for read, variance in zip(block, variances, strict=True):
            labels_B = dataset.labels_N[ids_N[read.rows]].to(device)
            with torch.inference_mode():
                logits_BC = call_model(self.model, self.batches.inputs_of(read.examples_B)).double()
            softmax_BC = logits_BC.softmax(dim=-1)
            own_B = softmax_BC.gather(1, labels_B[:, None]).squeeze(1)
            errors_BC = softmax_BC - functional.one_hot(labels_B, logits_BC.shape[-1])
            norms_B = torch.linalg.vector_norm(errors_BC, dim=-1)
            if counted_N is not None:
                variance.add(softmax_BC, counted_N[read.rows].to(device))
            self.num_viewed += len(labels_B)
            num_states = 1 + sum(map(len, self.states.learners))
            self.batches.on_progress(self.num_viewed, len(self.batches) * num_states)
            figures = (own_B, margins_of(logits_BC, labels_B), norms_B)
            finite_B = logits_BC.isfinite().all(dim=-1)
            yield read.rows, (finite_B, *(figure.float() for figure in figures))


_ZERO = torch.zeros(())


@dataclass
class _Variance:
    """Welford's variance of a batch's softmax among counted learners, summed over classes."""

    mean_BC: Tensor = _ZERO
    squares_B: Tensor = _ZERO
    number_B: Tensor = _ZERO

    def add(self, softmax_BC: Tensor, counted_B: Tensor) -> None:
        self.number_B = self.number_B + counted_B
        # Uncounted learners add 0.
        change_BC = (softmax_BC - self.mean_BC).where(counted_B[:, None], 0)
        self.mean_BC = self.mean_BC + change_BC / self.number_B.clamp_min(1)[:, None]
        added_BC = change_BC * (softmax_BC - self.mean_BC)
        self.squares_B = self.squares_B + added_BC.sum(dim=-1)

    def unbiased_B(self) -> Tensor:
        return self.squares_B / (self.number_B - 1).clamp_min(1)
