"""GLISTER: keep the examples whose gradient step lowers the validation loss the most.

The subset S is to minimize L_V(theta - eta sum_S g), the validation loss after one step
of the last layer. Greedily, the gain of example i is its Taylor term

    gain_i = eta <g_i, grad L_V(theta - eta sum_S g)>,

at the layer that the examples chosen so far have stepped to. How often the layer steps
is the solver's choice: after every pick (exact, stochastic), or between rounds of picks.

The step is the authors': eta times the SUM of the subset's gradients. So the layer moves
the farther the larger the budget is. On a single class, as where classes get equal shares,
the validation loss is next to nothing after some tens of picks, and the rest are ordered
by what is left of it. On all classes a few hundred picks in 15 rounds can overshoot: the
loss ends above that at the start, far below that of one-shot choice; the exact solver
ends lower. `step=mean` divides eta by K. The layer then hardly moves, and the larger the
budget, the more of the picks are those of one-shot choice: most, from a few hundred on.

Lazy greedy's bounds do not hold here: the gain of an example can grow as others are
chosen. But it moves by at most eta |g_i| times the distance that grad L_V has moved, so
the exact solver evaluates only examples that this allows to be the largest. They are few
where steps are short.

Where there are few validation examples, the best subset for their loss can be narrow.
The paper adds lambda R(S) for one of two functions: supervised facility location, which
wants every training example to have a chosen one of its class like it, or a random
function, which perturbs the order.

Shapes: N examples, V validation examples, C classes, D features, K budget,
B candidates.
Source: Killamsetty et al. 2021 (arXiv:2012.10630); Wei et al. 2015, "Submodularity in
Data Subset Selection and Active Learning".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.common.errors import SignalsError
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.last_layer import (
    LastLayer,
    alignments,
    aligns_compiled,
    in_validation_span,
    last_layer_at,
    step,
    validation_gradient,
)
from lipt.core.selection.gradients.vectors import (
    LayerGradient,
    Vectors,
    gradients_of,
    squared_norms,
)
from lipt.core.selection.selection import Selection, keep_largest, unweighted
from lipt.core.selection.strategy import CLASSES, SIGNALS, Need, Strategy
from lipt.core.signals.signals import Signals, given

# Evaluated first by the exact solver: the best of them rules most others out.
_NUM_PROBES = 16
# From this share of candidates on, evaluating all examples is as cheap.
_WORTH_GATHERING = 0.125
# The chance of a stochastic sample to miss all of the K best.
_MISS = 0.1
# What a bound leaves for rounding, that of float32 included: in it gains are compared.
_ROUNDING = 1e-6


def glister(
    signals: Signals,
    budget: int,
    *,
    solver: Annotated[
        Literal["rounds", "exact", "stochastic"],
        "update the layer between rounds, or after every pick: of all, or of a sample",
    ] = "rounds",
    rounds: Annotated[int, Field(ge=1), "how many rounds, with solver=rounds"] = 15,
    step: Annotated[
        Literal["sum", "mean"],
        "whether the layer steps by the learning rate times the sum of the subset's gradients, or "
        "times their mean",
    ] = "sum",
    learning_rate: Annotated[float, Field(gt=0), "of that step"] = 0.05,
    regularizer: Annotated[RegularizerName, "a function added to the objective"] = "none",
    regularization: Annotated[
        float, Field(ge=0), "weight of the regularizer; with 1 the largest first gains count alike"
    ] = 1.0,
    seed: int,
) -> Selection:
    """Keep the `budget` examples with the largest gains, each with weight 1.

    Raises:
        SignalsError: there are no validation signals, or they do not fit.
    """
    num_updates = (min(rounds, budget) if solver == "rounds" else budget) - 1
    rate = learning_rate if step == "sum" else learning_rate / budget
    objective = GlisterObjective(signals, rate, num_updates)
    objective.regularize(make_regularizer(regularizer, signals, seed), regularization)
    match solver:
        case "rounds":
            return unweighted(_in_rounds(objective, budget, rounds))
        case "exact":
            return unweighted(_exactly(objective, budget))
        case "stochastic":
            return unweighted(_from_samples(objective, budget, seed))


def round_sizes(budget: int, rounds: int) -> Iterator[int]:
    """How many examples each round takes: `budget` in all, at least one each.

    Sizes shrink linearly, so that the last rounds, which decide how the step ends, are small.
    By the mean that changes nothing. By the sum, on 5,000 made-up and 4,500 real examples,
    the loss ended below that of equal rounds with 250 and 500 picks of all classes (by a
    fifth to a half), and with 60 or of one class at times a little above.
    """
    num_rounds = min(rounds, budget)
    spare, total = budget - num_rounds, num_rounds * (num_rounds + 1) // 2
    ahead = 0
    for share in range(num_rounds, 0, -1):
        given = spare * ahead // total
        ahead += share
        yield 1 + spare * ahead // total - given


def _in_rounds(objective: GlisterObjective, budget: int, rounds: int) -> Tensor:
    chosen: list[Tensor] = []
    num_left = budget
    for size in round_sizes(budget, rounds):
        new = keep_largest(comparable(objective.gains()), size).indices_K
        num_left -= size
        objective.add(new, update=num_left > 0)
        chosen.append(new)
    return torch.cat(chosen)


def _exactly(objective: GlisterObjective, budget: int) -> Tensor:
    """Every pick is the largest of all gains; most of them need not be computed.

    From gains at a reference gradient, upper bounds at the current one follow. Examples
    whose bound is below a gain that is known are out. Where too few are out, all gains
    are computed, and the current gradient is the reference from then on. A regularizer's
    gains never grow, so those at the reference bound it, too.
    """
    norms_N = squared_norms(objective.gradients).sqrt_()
    max_candidates = int(_WORTH_GATHERING * len(norms_N))
    reference = objective.gradient()
    gains_N = objective.gains(gradient=reference)
    best = _first_largest(gains_N)
    chosen: list[int] = []
    while True:
        chosen.append(best)
        gains_N[best] = -math.inf
        if len(chosen) == budget:
            return torch.tensor(chosen, device=norms_N.device)
        objective.add(torch.tensor([best], device=norms_N.device), update=True)
        gradient = objective.gradient()
        drift = gradient.minus(reference).norm + _ROUNDING * gradient.norm
        bounds_N = gains_N + (1 + _ROUNDING) * drift * norms_N
        probes_B = bounds_N.topk(min(_NUM_PROBES, len(bounds_N))).indices
        known = float(objective.gains(probes_B, gradient=gradient).max())
        candidates_B = torch.nonzero(bounds_N >= known - _ROUNDING * abs(known)).flatten()
        if 0 < len(candidates_B) <= max_candidates:
            candidate_gains_B = objective.gains(candidates_B, gradient=gradient)
            best = int(candidates_B[_first_largest(candidate_gains_B)])
        else:
            reference, gains_N = gradient, objective.gains(gradient=gradient)
            best = _first_largest(gains_N)


def _from_samples(objective: GlisterObjective, budget: int, seed: int) -> Tensor:
    """Every pick is the largest of a sample's gains ("lazier than lazy" greedy).

    Drawn with replacement, so that a draw costs the sample and not N.
    """
    generator = derive_generator(seed, "glister-samples")
    num_left = len(objective.gradients)
    sample_size = math.ceil(num_left / budget * math.log(1 / _MISS))
    left = torch.arange(num_left)
    device = objective.gradients.device
    chosen: list[int] = []
    while len(chosen) < budget:
        if sample_size < num_left:
            places_B = torch.randint(num_left, (sample_size,), generator=generator)
        else:
            places_B = torch.arange(num_left)
        places_B = places_B[left[places_B].argsort()]
        place = places_B[_first_largest(objective.gains(left[places_B].to(device)))]
        chosen.append(int(left[place]))
        num_left -= 1
        left[place] = left[num_left]
        new = torch.tensor(chosen[-1:], device=device)
        objective.add(new, update=len(chosen) < budget)
    return torch.tensor(chosen, device=device)


def _first_largest(gains_B: Tensor) -> int:
    return int(comparable(gains_B).argmax())


# Signals of up to this size in float64 are converted once instead of at every update.
_HELD_BYTES = 64 * 1024**2


class GlisterObjective:
    """Gains of all examples, at the layer that the chosen ones have stepped to."""

    def __init__(self, signals: Signals, rate: float, num_updates: int) -> None:
        """Start with nothing chosen; the rate is by the sum of the chosen examples' losses.

        Raises:
            SignalsError: there are no validation signals, or they do not fit.
        """
        self.gradients, self._layer = _cheapest_form(
            gradients_of(signals), last_layer_at(_require_validation(signals)), num_updates
        )
        self._rate = rate
        self._regularizer: Regularizer | None = None
        self._weight = 0.0
        self._is_chosen_N = torch.zeros(
            len(signals), dtype=torch.bool, device=self.gradients.device
        )

    def regularize(self, regularizer: Regularizer | None, strength: float) -> None:
        """Add a function, scaled so that its first gains compare with the objective's own."""
        if regularizer is None:
            return
        own = float(self.gains().abs().max())
        other = float(regularizer.gains(self.all_rows()).max())
        self._weight = strength * (own or 1.0) / (other or 1.0)
        self._regularizer = regularizer

    def all_rows(self) -> Tensor:
        """The row numbers of all examples."""
        return torch.arange(len(self.gradients), device=self._is_chosen_N.device)

    def gradient(self) -> LayerGradient:
        """`rate` times the gradient of the validation loss.

        Where nothing else is weighed against it, a vanishing one is raised: steps by the sum
        of many gradients soon leave no loss on a single class, and gains would tie at 0.
        """
        raised = self._regularizer is None
        return validation_gradient(self._layer, raised=raised).scaled(self._rate)

    def gains(
        self, rows_B: Tensor | None = None, *, gradient: LayerGradient | None = None
    ) -> Tensor:
        """What choosing each of some examples (all where None) gains; B float64.

        Minus infinity for those that are chosen already.
        """
        given = self.gradients if rows_B is None else self.gradients[rows_B]
        gains_B = alignments(given, self.gradient() if gradient is None else gradient)
        if self._regularizer is not None:
            rows = self.all_rows() if rows_B is None else rows_B
            gains_B += self._weight * self._regularizer.gains(rows)
        is_chosen_B = self._is_chosen_N if rows_B is None else self._is_chosen_N[rows_B]
        return gains_B.masked_fill_(is_chosen_B, -math.inf)

    def add(self, new: Tensor, *, update: bool) -> None:
        """Choose examples, and let the layer step on them where that is still of use."""
        self._is_chosen_N[new] = True
        if update:
            self._layer = step(self._layer, self.gradients[new], self._rate)
            if self._regularizer is not None:
                self._regularizer.add(new)


def comparable(gains_B: Tensor) -> Tensor:
    """Gains in float32: those that differ by rounding alone become equal, and ties.

    Scaled by a power of 2, so that gains near the end of a step do not vanish.
    """
    largest = float(gains_B.masked_fill(gains_B.isinf(), 0.0).abs().max())
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return (gains_B * 2.0 ** -max(exponent, -1000)).float()


def _cheapest_form(
    gradients: Vectors, layer: LastLayer, num_updates: int
) -> tuple[Vectors, LastLayer]:
    """The same gains from fewer features, and converted once for all updates if they fit."""
    num_classes, num_features = gradients[:0].outer_NC.shape[1], gradients.features_ND.shape[1]
    num_validation = len(layer.labels_V)
    work_saved = num_updates * num_classes * (num_features - num_validation)
    fits = 8 * len(gradients) * num_validation <= _HELD_BYTES
    if work_saved > num_validation * num_features and fits:
        gradients, layer = in_validation_span(gradients, layer)
    held_bytes = 8 * len(gradients) * gradients.width
    if held_bytes <= _HELD_BYTES and not aligns_compiled(gradients):
        gradients = gradients.to(torch.float64)
    return gradients, layer


def _require_validation(signals: Signals) -> Signals:
    validation = given(signals.validation or None, "validation examples")
    expected = (signals.errors_NC.shape[1], signals.features_ND.shape[1])
    found = (validation.errors_NC.shape[1], validation.features_ND.shape[1])
    if found != expected:
        raise SignalsError(
            f"the validation examples have {found[0]} classes and {found[1]} features, the "
            f"training examples {expected[0]} and {expected[1]}. Compute both with one model."
        )
    return validation


RegularizerName = Literal["none", "facility_location", "random"]

# A matrix of all similarities of up to this size is made once instead of at every step.
_HELD_SIMILARITY_BYTES = 256 * 1024**2


class Regularizer(Protocol):
    """A monotone submodular R: gains are never negative and never grow."""

    def gains(self, candidates_B: Tensor) -> Tensor:
        """R(S + i) - R(S) of every candidate i; B float64."""
        ...

    def add(self, chosen: Tensor) -> None:
        """Put examples into S."""
        ...


def make_regularizer(name: RegularizerName, signals: Signals, seed: int) -> Regularizer | None:
    """The regularizer of that name over the signals' examples, with nothing chosen."""
    match name:
        case "none":
            return None
        case "facility_location":
            return ClassCoverage(signals)
        case "random":
            return RandomFunction(len(signals), seed, signals.features_ND.device)


class RandomFunction:
    """R(S) = the sum of u_i over S, with u_i drawn once from [0, 1)."""

    def __init__(self, num_examples: int, seed: int, device: torch.device) -> None:
        generator = derive_generator(seed, "glister-random-function")
        values_N = torch.rand(num_examples, generator=generator, dtype=torch.float64)
        self._values_N = values_N.to(device)

    def gains(self, candidates_B: Tensor) -> Tensor:
        """See `Regularizer`."""
        return self._values_N[candidates_B]

    def add(self, chosen: Tensor) -> None:
        """See `Regularizer`; what is chosen does not matter."""


class ClassCoverage:
    """R(S) = the mean over all i of the largest similarity to an example in S.

    Similarity is (1 + cosine of the features) / 2 within a class, and 0 between classes.
    """

    def __init__(self, signals: Signals) -> None:
        self._directions_ND = functional.normalize(signals.features_ND.double(), dim=-1)
        self._labels_N = signals.labels_N
        num_examples = len(signals)
        self._covered_N = self._directions_ND.new_zeros(num_examples, dtype=torch.float32)
        self._held_NN: Tensor | None = None
        if 4 * num_examples**2 <= _HELD_SIMILARITY_BYTES:
            held_NN = self._covered_N.new_empty(num_examples, num_examples)
            for rows in row_blocks(num_examples, 16 * num_examples):
                held_NN[rows] = self._compute(rows)
            self._held_NN = held_NN

    def gains(self, candidates_B: Tensor) -> Tensor:
        """See `Regularizer`."""
        gains_B = self._directions_ND.new_empty(len(candidates_B))
        row_bytes = 16 * len(self._covered_N)
        for rows in row_blocks(len(candidates_B), row_bytes):
            better_BN = self._rows(candidates_B[rows]).sub_(self._covered_N).clamp_(min=0)
            gains_B[rows] = better_BN.mean(dim=-1, dtype=torch.float64)
        return gains_B

    def add(self, chosen: Tensor) -> None:
        """See `Regularizer`."""
        for rows in row_blocks(len(chosen), 16 * len(self._covered_N)):
            best_N = self._rows(chosen[rows]).amax(dim=0)
            self._covered_N = torch.maximum(self._covered_N, best_N)

    def _rows(self, positions_B: Tensor) -> Tensor:
        """The similarities of some examples to all, a new tensor; B x N float32."""
        return self._compute(positions_B) if self._held_NN is None else self._held_NN[positions_B]

    def _compute(self, rows: Tensor | slice) -> Tensor:
        cosines_BN = self._directions_ND[rows] @ self._directions_ND.T
        same_class_BN = self._labels_N[rows, None] == self._labels_N
        return cosines_BN.add_(1).div_(2).mul_(same_class_BN).float()


STRATEGY = Strategy(
    function=glister,
    summary="gradient steps that lower the validation loss the most, layer updated on the way",
    paper=(
        'Killamsetty et al. 2021, "GLISTER: Generalization based Data Subset Selection for '
        'Efficient and Robust Learning" (arXiv:2012.10630)'
    ),
    cost="r N C d",
    needs=SIGNALS | {Need.VALIDATION},
    kinds=CLASSES,
)
