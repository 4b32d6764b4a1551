"""Merged learners: theta(w) = theta* + sum_k w_k (theta_k - theta*), scored on a target.

Learner k trained on source k alone, briefly and from the shared theta*. theta(w) then approximates
the model that training on the mixture w gives. Its outputs are taken as linear in w around some
weights, by a forward pass for each source: losses are then convex in w, and a fit costs no pass.
Taking them again around the fitted weights makes the slopes there exact.

Batch norm uses the statistics of the target's own batches: running ones fit no mixture of weights.

Shapes: N target examples, T outputs, K sources, D features.
Source: Merge to Mix (arXiv:2505.16066); MergeMix (arXiv:2601.17858).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.computation import computation
from lipt.common.tensor_files import Weights
from lipt.core.pretraining.evaluation import batch_norm_inputs
from lipt.core.pretraining.simplex import (
    NUM_RESAMPLES,
    STRENGTHS,
    Fitted,
    Losses,
    exponentiated_gradient,
    fit,
    uniform,
)
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import InputFormat, Inputs
from lipt.data.targets.values import Target
from lipt.models.head import evaluation_mode, forward_with_features

# Batch statistics of fewer examples are noisy.
_BATCH = 256
# Times that outputs are taken as linear, each time around the weights fitted before.
NUM_ROUNDS = 3
# Share of the way to a source's learner over which a slope is measured.
SLOPE_STEP = 0.05


@dataclass(frozen=True)
class InputBatches:
    """Stored examples as a model's inputs, batch by batch, converted whenever they are needed."""

    examples: Stored
    inputs: InputFormat
    device: torch.device

    def __iter__(self) -> Iterator[Inputs]:
        return batch_norm_inputs(self.examples, self.inputs, self.device, batch_size=_BATCH)


@dataclass(frozen=True)
class Merged:
    """theta* and what each learner adds to it, with a target's examples.

    model: any of that kind, on the device, with theta*'s frozen tensors; others are replaced.
    added: by name, K x the tensor's shape; integers, such as a batch counter, add nothing.
    batches: the target's inputs, on the device. targets_N: as `target` takes them.
    """

    model: nn.Module
    initial: Weights
    added: Weights
    batches: Iterable[Inputs]
    target: Target
    targets_N: Tensor

    @property
    def num_sources(self) -> int:
        return len(next(iter(self.added.values())))

    def weights(self, shares_K: Tensor) -> Weights:
        """theta(w)."""
        return {
            name: start + torch.tensordot(shares_K.to(start.dtype), self.added[name], dims=1)
            if name in self.added
            else start
            for name, start in self.initial.items()
        }

    def outputs(self, shares_K: Tensor) -> Tensor:
        """The target's outputs under theta(w); N x T on the CPU."""
        outputs, _ = self._passed(self.weights(shares_K), self.batches)
        return outputs

    def features(self, batches: Iterable[Inputs]) -> Tensor:
        """The head's inputs under theta*, of any examples; N x D on the CPU."""
        return self._passed(self.initial, batches)[1]

    def initial_losses(self) -> Tensor:
        """Each target example's loss under theta*."""
        return self._losses(self.initial)

    def losses_at(self, shares_K: Tensor) -> Tensor:
        """Each target example's loss under theta(w)."""
        return self._losses(self.weights(shares_K))

    def scored(self, by_fold: Sequence[Tensor], fold_N: Tensor) -> tuple[Tensor, float]:
        """Each example's loss, and the score, under the shares of its fold."""
        first_K, *later_folds = by_fold
        if all(torch.equal(shares_K, first_K) for shares_K in later_folds):
            outputs_NT = self.outputs(first_K)
        else:
            each = torch.stack([self.outputs(shares_K) for shares_K in by_fold])
            outputs_NT = each[fold_N, torch.arange(len(fold_N))]
        tally = self.target.tally()
        tally.add(outputs_NT, self.targets_N)
        return self.target.losses(outputs_NT, self.targets_N), tally.score()

    def linearized(self, around_K: Tensor) -> Losses:
        """Losses as functions of the weights, exact at `around_K`, with its slopes."""
        start_NT = self.outputs(around_K).double()
        corners_KK = torch.eye(len(around_K), dtype=torch.float64)
        slopes_NTK = torch.stack(
            [
                (self.outputs(around_K + SLOPE_STEP * (corner_K - around_K)) - start_NT)
                / SLOPE_STEP
                for corner_K in corners_KK
            ],
            dim=-1,
        )
        # A slope is towards a corner, and weights have the sum 1.
        slopes_XK = slopes_NTK.reshape(-1, len(around_K))
        start_X = start_NT.reshape(-1) - slopes_XK @ around_K

        def losses(weights_RK: Tensor) -> Tensor:
            outputs_RX = start_X + weights_RK @ slopes_XK.T
            outputs = outputs_RX.reshape(-1, start_NT.shape[1])
            times = (len(weights_RK), *[1] * (self.targets_N.ndim - 1))
            losses_X = self.target.losses(outputs, self.targets_N.repeat(times))
            return losses_X.reshape(len(weights_RK), -1).double()

        return losses

    def fit(self, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> Fitted:
        """The weights whose theta(w) has the least loss on the target."""
        num_examples, around_K = len(self.targets_N), uniform(self.num_sources)
        unit = float(self.losses_at(around_K).mean())
        each_1N = torch.full((1, num_examples), 1 / num_examples, dtype=torch.float64)
        for _ in range(NUM_ROUNDS - 1):
            losses = self.linearized(around_K)
            weak_1 = torch.tensor([unit * STRENGTHS[1]])
            around_K = exponentiated_gradient(losses, each_1N, weak_1, self.num_sources)[0]
        return fit(
            self.linearized(around_K),
            num_examples,
            self.num_sources,
            unit=unit,
            seed=seed,
            num_resamples=num_resamples,
        )

    def load(self, weights: Weights) -> None:
        """Give the model weights that differ from theta* by what learners add."""
        changed = self.added.keys() | {
            name for name, start in self.initial.items() if not start.is_floating_point()
        }
        self.model.load_state_dict({name: weights[name] for name in changed}, strict=False)

    def _losses(self, weights: Weights) -> Tensor:
        outputs_NT, _ = self._passed(weights, self.batches)
        return self.target.losses(outputs_NT, self.targets_N)

    def _passed(self, weights: Weights, batches: Iterable[Inputs]) -> tuple[Tensor, Tensor]:
        self.load(weights)
        # A computation sets its own gradient mode.
        with _batch_statistics(self.model), computation(1), torch.no_grad():
            passed = [forward_with_features(self.model, inputs_B) for inputs_B in batches]
        outputs, features = zip(*passed, strict=True)
        return torch.cat(outputs).float().cpu(), torch.cat(features).float().cpu()


def added_by(
    initial: Weights, learners: Sequence[Weights], frozen: Collection[str] = ()
) -> Weights:
    """The difference of each learner from theta*, by name, of what is not frozen."""
    return {
        name: torch.stack([learner[name] for learner in learners]) - start
        for name, start in initial.items()
        if start.is_floating_point() and name not in frozen
    }


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    with evaluation_mode(model):
        for layer in model.modules():
            if isinstance(layer, _BatchNorm):
                layer.train()
        yield
