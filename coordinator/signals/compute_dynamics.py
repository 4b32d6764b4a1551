"""Computes `Dynamics`: what theta*, every snapshot and every learner make of the data.

One model is in memory at a time, and of its outputs only what `Dynamics` keeps. The
examples come in blocks whose images and running means fit in memory: images are read and
decoded once for all models, and N x C x L numbers are never held.

Shapes: N examples, C classes, L learners, T moments of each (theta* first), B examples of
a batch, R of a block, M images for batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.images.model_input import to_model_input
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.weights.specs import Weights
from lipt.coordinator.pretraining.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)
from lipt.coordinator.pretraining.evaluation import batch_norm_inputs
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.compute import OnProgress
from lipt.coordinator.signals.dynamics import Dynamics
from lipt.coordinator.signals.finite import require_finite_rows

_BLOCK_BYTES = 512 * 1024**2

Loader = Callable[[], Weights]


@dataclass(frozen=True)
class States:
    """The weights to look at; each is read when it is its turn.

    initial: theta*.
    learners: of each learner its snapshots, in the order of training, and itself at the
        end; at least one learner, each with the same number of states.
    """

    initial: Loader
    learners: tuple[tuple[Loader, ...], ...]

    @property
    def num_moments(self) -> int:
        """T: theta* and the states of one learner."""
        return 1 + len(self.learners[0])

    def __len__(self) -> int:
        """How many models there are in all."""
        return 1 + sum(map(len, self.learners))


def compute_dynamics(
    model: nn.Module,
    states: States,
    dataset: Dataset,
    image: ImageFormat,
    *,
    device: torch.device,
    batch_norm_images_MCHW: Tensor | None,
    batch_size: int,
    on_progress: OnProgress,
    block_bytes: int = _BLOCK_BYTES,
) -> Dynamics:
    """One forward pass over all examples for every state, in evaluation mode.

    Args:
        model: on `device`; takes on each state's weights, its training flags are restored.
        states: theta*, the snapshots and the learners.
        dataset: where images and labels come from.
        image: how its images are normalized.
        device: where the model is.
        batch_norm_images_MCHW: uint8 images to estimate every state's batch-norm statistics
            on; None takes those that the weights came with.
        batch_size: images per forward pass.
        on_progress: told after every batch how many of the N (1 + L (T - 1)) views of an
            example by a model are done.
        block_bytes: about what a block may take; it changes no result.

    Raises:
        SignalsError: a state's outputs are not finite; names it and the first ids.
    """
    num_examples, num_learners = len(dataset), len(states.learners)
    shape_NLT = (num_examples, num_learners, states.num_moments)
    dynamics = Dynamics(
        probabilities_NLT=torch.empty(shape_NLT),
        margins_NLT=torch.empty(shape_NLT),
        error_norms_NL=torch.empty(num_examples, num_learners),
        disagreement_N=torch.empty(num_examples),
    )
    total = num_examples * len(states)
    viewer = _Viewer(
        model=model,
        image=image,
        device=device,
        batch_norm_images_MCHW=batch_norm_images_MCHW,
        batch_size=batch_size,
        report=lambda num_viewed: on_progress(num_viewed, total),
    )
    # An image, and two numbers in float64 per class: the mean, and what is added to it.
    row_bytes = math.prod(dataset.image_shape) + 16 * len(dataset.class_names)
    num_batches = -(-num_examples // batch_size)
    with evaluation_mode(model), pinned_kernels():
        # Whole batches, so that a block's size changes no batch.
        for batches in row_blocks(num_batches, row_bytes * batch_size, block_bytes):
            rows = slice(batches.start * batch_size, min(batches.stop * batch_size, num_examples))
            _fill_in(dynamics, viewer, states, _Block(dataset, rows, batch_size, device))
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
    """Fill in a block's rows, one model after the other."""
    spread = _Spread()
    for place in _places(states):
        viewer.take_on(place)
        committed = place.moment == states.num_moments - 1
        if committed:
            spread.begin_next()
        for rows, images_BCHW, labels_B in block.batches():
            logits_BC = viewer.logits(images_BCHW)
            ids_B = torch.arange(rows.start, rows.stop)
            require_finite_rows(logits_BC.isfinite().all(dim=-1), ids_B, place.words)
            chances_BC = logits_BC.softmax(dim=-1)
            own_B = chances_BC.gather(1, labels_B[:, None]).squeeze(1)
            dynamics.probabilities_NLT[rows, place.learners, place.moment] = _column(own_B)
            margins_B = margins_of(logits_BC, labels_B)
            dynamics.margins_NLT[rows, place.learners, place.moment] = _column(margins_B)
            if committed:
                errors_BC = chances_BC - functional.one_hot(labels_B, logits_BC.shape[-1])
                norms_B = torch.linalg.vector_norm(errors_BC, dim=-1)
                dynamics.error_norms_NL[rows, place.learners] = _column(norms_B)
                spread.add(chances_BC)
    dynamics.disagreement_N[block.rows] = spread.variance_R().float().cpu()


def _column(values_B: Tensor) -> Tensor:
    """One column, for one learner or for all of them."""
    return values_B.float().cpu()[:, None]


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
    """Some consecutive examples; their images are read once, while the first model looks."""

    dataset: Dataset
    rows: slice
    batch_size: int
    device: torch.device
    images: list[Tensor] = field(default_factory=list)

    def batches(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, uint8 images and labels (on the device) of each batch."""
        starts = range(self.rows.start, self.rows.stop, self.batch_size)
        for number, start in enumerate(starts):
            rows = slice(start, min(start + self.batch_size, self.rows.stop))
            if number == len(self.images):
                self.images.append(self.dataset.images(torch.arange(rows.start, rows.stop)))
            yield rows, self.images[number], self.dataset.labels_N[rows].to(self.device)


@dataclass
class _Viewer:
    """A model that takes on one state after the other, and how much it has seen."""

    model: nn.Module
    image: ImageFormat
    device: torch.device
    batch_norm_images_MCHW: Tensor | None
    batch_size: int
    report: Callable[[int], None]
    num_viewed: int = 0
    # By words of a place: a state that comes back for the next block keeps its own.
    statistics: dict[str, Weights] = field(default_factory=dict)

    def take_on(self, place: _Place) -> None:
        """Load a state; its batch-norm statistics are those of its weights."""
        known = self.statistics.get(place.words, {})
        self.model.load_state_dict({**place.load(), **known})
        images_MCHW = self.batch_norm_images_MCHW
        if images_MCHW is not None and not known and has_batch_norm(self.model):
            reestimate_batch_norm(self.model, self._batch_norm_inputs(images_MCHW))
            self.statistics[place.words] = batch_norm_statistics(self.model)

    def _batch_norm_inputs(self, images_MCHW: Tensor) -> Iterator[Tensor]:
        for inputs_BCHW in batch_norm_inputs(
            images_MCHW, self.image, self.device, batch_size=self.batch_size
        ):
            self.report(self.num_viewed)
            yield inputs_BCHW

    @torch.inference_mode()
    def logits(self, images_BCHW: Tensor) -> Tensor:
        """What the present state makes of uint8 images, in float64."""
        logits_BC: Tensor = self.model(to_model_input(images_BCHW, self.image, self.device))
        self.num_viewed += len(images_BCHW)
        self.report(self.num_viewed)
        return logits_BC.double()


@dataclass
class _Spread:
    """The variance among models of a block's probabilities, as the models come (Welford)."""

    means: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    num_models: int = 0
    batch: int = 0

    def begin_next(self) -> None:
        """Another model begins with the first batch."""
        self.num_models += 1
        self.batch = 0

    def add(self, chances_BC: Tensor) -> None:
        """The next batch by the present model."""
        if self.num_models == 1:
            self.means.append(chances_BC)
            self.squares.append(torch.zeros_like(chances_BC[:, 0]))
        else:
            mean_BC = self.means[self.batch]
            change_BC = chances_BC - mean_BC
            mean_BC = self.means[self.batch] = mean_BC + change_BC / self.num_models
            self.squares[self.batch] += (change_BC * (chances_BC - mean_BC)).sum(dim=-1)
        self.batch += 1

    def variance_R(self) -> Tensor:
        """Of the population of models, summed over the classes."""
        return torch.cat(self.squares) / self.num_models
