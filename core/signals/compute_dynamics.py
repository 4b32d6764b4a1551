"""Computing dynamics: what theta*, every snapshot and every learner make of the data.

One model is in memory at a time, and of its outputs only what `Dynamics` keeps. The
examples come in blocks that fit in memory with their running means: images are read and
decoded once for all models, and N x C x L numbers are never held.

Shapes: N examples, C classes, L learners, T moments of each (theta* first), B examples of
a batch, R of a block, M examples for batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.determinism import pinned_kernels
from lipt.common.inputs.model_input import Stored, num_stored
from lipt.common.inputs.specs import Inputs, call_model
from lipt.common.models.head import evaluation_mode
from lipt.common.signals.blocks import row_blocks
from lipt.common.signals.passes import Batches, Read, arriving, require_finite_rows
from lipt.common.weights.specs import Weights
from lipt.core.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)
from lipt.core.evaluation import batch_norm_inputs
from lipt.core.signals.dynamics import Dynamics, counted_learners

_BLOCK_BYTES = 512 * 1024**2
# Whose outputs a variance is of.
_NUM_TO_DISAGREE = 2

Loader = Callable[[], Weights]


@dataclass(frozen=True)
class States:
    """The weights to look at; each is read when it is its turn.

    initial: theta*.
    learners: of each learner its states, in the order of training; at least one learner,
        each with the same number of states.
    """

    initial: Loader
    learners: tuple[tuple[Loader, ...], ...]

    @property
    def num_moments(self) -> int:
        """T: theta* and the states of one learner."""
        return 1 + len(self.learners[0])

    def __len__(self) -> int:
        return 1 + sum(map(len, self.learners))


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

    Args:
        model: on the batches' device; takes on each state's weights, its training flags are
            restored.
        states: theta*, the snapshots and the learners.
        batches: of N examples; what its progress counts is the N (1 + L (T - 1)) views of an
            example by a model.
        own_learner_N: of each of these examples the learner that was trained on it, or -1.
        batch_norm_examples_M: to estimate every state's batch-norm statistics on; None takes
            those that the weights came with.
        frozen: names of statistics that stay as they came.

    Raises:
        SignalsError: a state's outputs are not finite; names it and the first ids.
    """
    num_examples, num_learners = len(batches), len(states.learners)
    shape_NLT = (num_examples, num_learners, states.num_moments)
    dynamics = Dynamics(
        probabilities_NLT=torch.empty(shape_NLT),
        margins_NLT=torch.empty(shape_NLT),
        error_norms_NL=torch.empty(num_examples, num_learners),
        disagreement_N=torch.empty(num_examples),
        own_learner_N=own_learner_N,
    )
    num_views = num_examples * len(states)
    viewer = _Viewer(model, batches, batch_norm_examples_M, frozen, num_views)
    # An example, and two numbers in float64 per class: the mean, and what is added to it.
    dataset = batches.dataset
    row_bytes = dataset.inputs.num_bytes + 16 * len(dataset.class_names)
    with evaluation_mode(model), pinned_kernels():
        # Whole batches, so that a block's size changes no batch.
        starts = range(0, num_examples, batches.size)
        for block in row_blocks(len(starts), row_bytes * batches.size, _BLOCK_BYTES):
            _fill_in(dynamics, viewer, states, _Block(batches, starts[block]))
    return dynamics


@dataclass(frozen=True)
class _Place:
    """A state, and where its results go: theta*'s to every learner, another's to its own."""

    learners: slice
    moment: int
    load: Loader
    words: str


def _places(states: States) -> Iterator[_Place]:
    yield _Place(slice(None), 0, states.initial, "outputs with the initial weights")
    for learner, loaders in enumerate(states.learners):
        for moment, load in enumerate(loaders, start=1):
            words = f"outputs as state {moment} of {len(loaders)} of learner {learner}"
            yield _Place(slice(learner, learner + 1), moment, load, words)


def _fill_in(dynamics: Dynamics, viewer: _Viewer, states: States, block: _Block) -> None:
    spread = _Spread()
    counted_NL = counted_learners(
        dynamics.own_learner_N, len(states.learners), num_needed=_NUM_TO_DISAGREE
    )
    for place in _places(states):
        viewer.take_on(place)
        is_last = place.moment == states.num_moments - 1
        counted_N = counted_NL[:, place.learners.start or 0] if is_last else None
        seen = _seen(viewer, block, spread, counted_N)
        for rows, (finite_B, own_B, margins_B, norms_B) in arriving(seen):
            require_finite_rows(finite_B, viewer.batches.ids_N[rows], place.words)
            at = (rows, place.learners, place.moment)
            dynamics.probabilities_NLT[at] = own_B[:, None]
            dynamics.margins_NLT[at] = margins_B[:, None]
            if is_last:
                dynamics.error_norms_NL[rows, place.learners] = norms_B[:, None]
    for start, variances_B in spread.variances():
        dynamics.disagreement_N[start : start + len(variances_B)] = variances_B.float().cpu()


def _seen(
    viewer: _Viewer, block: _Block, spread: _Spread, counted_N: Tensor | None
) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """What a state makes of each batch, on the device.

    Of every example whether its outputs are finite, its own label's probability and margin, and
    the error norm. With `counted_N` the state enters the spread, for the examples that it counts
    for.
    """
    for rows, examples_B, labels_B in block:
        logits_BC = viewer.logits(examples_B)
        chances_BC = logits_BC.softmax(dim=-1)
        own_B = chances_BC.gather(1, labels_B[:, None]).squeeze(1)
        errors_BC = chances_BC - functional.one_hot(labels_B, logits_BC.shape[-1])
        norms_B = torch.linalg.vector_norm(errors_BC, dim=-1)
        if counted_N is not None:
            spread.add(rows.start, chances_BC, counted_N[rows].to(chances_BC.device))
        figures = (own_B, margins_of(logits_BC, labels_B), norms_B)
        finite_B = logits_BC.isfinite().all(dim=-1)
        yield rows, (finite_B, *(figure.float() for figure in figures))


def margins_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The logit of the own label minus the largest other one; N.

    With a single class there is no other, and everything counts as right: the margin is 1.
    """
    if logits_NC.shape[-1] == 1:
        return torch.ones_like(logits_NC[:, 0])
    own_N1 = logits_NC.gather(1, labels_N[:, None])
    others_NC = logits_NC.scatter(1, labels_N[:, None], -math.inf)
    return own_N1.squeeze(1) - others_NC.amax(dim=-1)


@dataclass
class _Block:
    """Some consecutive batches; their examples are read once, while the first model looks."""

    batches: Batches
    starts: range
    read: list[Read] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[slice, Stored, Tensor]]:
        with self._batches() as batches:
            for batch in batches:
                labels_B = self.batches.dataset.labels_N[self.batches.ids_N[batch.rows]]
                yield batch.rows, batch.examples_B, labels_B.to(self.batches.device)

    @contextmanager
    def _batches(self) -> Iterator[Iterable[Read]]:
        if self.read:
            yield self.read
            return
        size, num_examples = self.batches.size, len(self.batches)
        rows = (slice(start, min(start + size, num_examples)) for start in self.starts)
        with self.batches.reading(rows) as batches:
            yield map(self._kept, batches)

    def _kept(self, batch: Read) -> Read:
        self.read.append(batch)
        return batch


@dataclass
class _Viewer:
    """A model that takes on one state after the other, and how much it has seen."""

    model: nn.Module
    batches: Batches
    batch_norm_examples_M: Stored | None
    frozen: frozenset[str]
    num_views: int
    num_viewed: int = 0
    # By words of a place: a state that comes back for the next block keeps its own.
    statistics: dict[str, Weights] = field(default_factory=dict)

    def take_on(self, place: _Place) -> None:
        """Load a state; its batch-norm statistics are those of its weights."""
        known = self.statistics.get(place.words, {})
        self.model.load_state_dict({**place.load(), **known})
        examples_M = self.batch_norm_examples_M
        if examples_M is not None and not known and has_batch_norm(self.model, self.frozen):
            inputs = self._batch_norm_inputs(examples_M)
            reestimate_batch_norm(self.model, inputs, self.frozen)
            self.statistics[place.words] = batch_norm_statistics(self.model, self.frozen)

    def _batch_norm_inputs(self, examples_M: Stored) -> Iterator[Inputs]:
        inputs, device, size = self.batches.inputs, self.batches.device, self.batches.size
        for inputs_B in batch_norm_inputs(examples_M, inputs, device, batch_size=size):
            self.batches.on_progress(self.num_viewed, self.num_views)
            yield inputs_B

    @torch.inference_mode()
    def logits(self, examples_B: Stored) -> Tensor:
        """What the present state makes of stored examples, in float64."""
        logits_BC = call_model(self.model, self.batches.inputs_of(examples_B))
        self.num_viewed += num_stored(examples_B)
        self.batches.on_progress(self.num_viewed, self.num_views)
        return logits_BC.double()


@dataclass
class _Spread:
    """The squared deviations among models of each batch's probabilities, summed over classes.

    As the models come (Welford), each for the examples that it counts for; by where a batch
    starts.
    """

    means: dict[int, Tensor] = field(default_factory=dict)
    squares: dict[int, Tensor] = field(default_factory=dict)
    numbers: dict[int, Tensor] = field(default_factory=dict)

    def add(self, start: int, chances_BC: Tensor, counted_B: Tensor) -> None:
        if start not in self.means:
            self.means[start] = torch.zeros_like(chances_BC)
            self.squares[start] = torch.zeros_like(chances_BC[:, 0])
            self.numbers[start] = torch.zeros_like(counted_B, dtype=torch.int64)
        self.numbers[start] += counted_B
        number_B1 = self.numbers[start].clamp_min(1)[:, None]
        # 0 where it does not count, and so is what it adds.
        change_BC = (chances_BC - self.means[start]).where(counted_B[:, None], 0)
        self.means[start] += change_BC / number_B1
        self.squares[start] += (change_BC * (chances_BC - self.means[start])).sum(dim=-1)

    def variances(self) -> Iterator[tuple[int, Tensor]]:
        """Of every batch, by where it starts; unbiased, and 0 of a single model."""
        for start, squares_B in self.squares.items():
            yield start, squares_B / (self.numbers[start] - 1).clamp_min(1)
