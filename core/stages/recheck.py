"""Recheck: whether a subset that was selected on earlier weights can stay at new ones.

CREST's test, on a random sample of the data. Around the earlier weights, the loss at a distance
delta is about F(delta) = L + g . delta + 1/2 delta . (h * delta), with the gradient g and the
Hessian's diagonal h. Another subset is due when F no longer predicts the loss. h is Hutchinson's
estimate: the mean of z * (H z) over Rademacher probes z, exact where H is diagonal. The paper
smooths g and h over training steps; here every call uses only its two weights.

Shapes: weights, gradient and diagonal are by parameter name.
Source: Yang et al. 2023 (arXiv:2306.01244), section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator, derive_seed
from lipt.core.signals.compute import LossSum, Parameters, loss_sum, trainable
from lipt.core.workspace import Workspace
from lipt.data.inputs.specs import InputFormat

# A hundredth of the data, as CREST's random sets, but enough for a stable mean.
_SHARE = 0.01
_MIN_SAMPLE = 256
# The paper's tau.
_THRESHOLD = 0.1
_NUM_PROBES = 4


@dataclass(frozen=True)
class Recheck:
    """The loss predicted by the quadratic model, and the actual one."""

    predicted_loss: float
    actual_loss: float

    @property
    def can_stay(self) -> bool:
        """Whether the subset can stay: the losses are near and finite."""
        error = abs(self.predicted_loss - self.actual_loss)
        return error <= _THRESHOLD * self.actual_loss < math.inf


def recheck(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    *,
    anchor: BlobName,
    weights: BlobName,
) -> Recheck:
    """Fit the quadratic model at `anchor`, and evaluate it and the loss at `weights`."""

    def parts(model: nn.Module) -> Iterator[LossSum]:
        batches = workspace.batches(inputs, "checking the previous subset", some=ids)
        for _, inputs_B, targets_B in batches:
            yield loss_sum(model, workspace.dataset.target, inputs_B, targets_B)

    # In float32 to the end, as two losses are compared.
    with computation(config.evaluation_threads):
        ids = sample_ids(len(workspace.dataset), config.seed)
        old = workspace.loaded_model(config, anchor)
        seed = derive_seed(config.seed, "quadratic model")
        fitted = fit_quadratic_model(parts(old), trainable(old), len(ids), seed=seed)
        model = workspace.loaded_model(config, weights)
        parameters = trainable(model)
        with torch.no_grad():
            losses = [part(parameters) for part in parts(model)]
        actual_loss = float(torch.stack(losses).double().sum()) / len(ids)
        return Recheck(fitted.predict(parameters), actual_loss)


def sample_ids(num_examples: int, seed: int) -> Tensor:
    """The examples for mean losses, the same for every check of a run."""
    size = min(num_examples, max(_MIN_SAMPLE, round(num_examples * _SHARE)))
    generator = derive_generator(seed, "quadratic model sample")
    return torch.randperm(num_examples, generator=generator)[:size].sort().values


@dataclass(frozen=True)
class QuadraticModel:
    """The mean loss of some examples around some parameters, with its derivatives by name."""

    loss: float
    parameters: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    diagonal: Mapping[str, Tensor]

    def predict(self, parameters: Mapping[str, Tensor]) -> float:
        """The predicted loss at other parameters; sums in float64."""
        predicted = self.loss
        for name, anchor in self.parameters.items():
            delta = (parameters[name].detach() - anchor).double()
            slope = self.gradient[name] + self.diagonal[name].double() * delta / 2
            predicted += float((slope * delta).sum())
        return predicted


def fit_quadratic_model(
    parts: Iterable[LossSum],
    parameters: Mapping[str, Tensor],
    num_examples: int,
    *,
    seed: int,
    num_probes: int = _NUM_PROBES,
) -> QuadraticModel:
    """The quadratic model around `parameters`, by two backward passes per part and probe."""
    at = {name: tensor.detach().clone().requires_grad_() for name, tensor in parameters.items()}
    probes = []
    for index in range(num_probes):
        generator = derive_generator(seed, "hutchinson", index)
        signs = [torch.randint(0, 2, tensor.shape, generator=generator) for tensor in at.values()]
        probes.append([z.mul_(2).sub_(1).to(to) for z, to in zip(signs, at.values(), strict=True)])
    loss = 0.0
    gradient, diagonal = (
        {name: torch.zeros_like(tensor) for name, tensor in parameters.items()} for _ in range(2)
    )
    for part in parts:
        # Attention has second derivatives only in its plain form.
        with sdpa_kernel(SDPBackend.MATH):
            part_loss = part(at)
        slopes_of_part = torch.autograd.grad(
            part_loss, list(at.values()), create_graph=True, materialize_grads=True
        )
        loss += float(part_loss.detach())
        for name, slopes in zip(at, slopes_of_part, strict=True):
            gradient[name].add_(slopes.detach())
        for probe in probes:
            for name, product, z in zip(
                at, _hessian_product(slopes_of_part, at, probe), probe, strict=True
            ):
                diagonal[name].add_(z * product)
    return QuadraticModel(
        loss / num_examples,
        {name: tensor.detach() for name, tensor in at.items()},
        {name: total / num_examples for name, total in gradient.items()},
        {name: total / (num_examples * num_probes) for name, total in diagonal.items()},
    )


def _hessian_product(
    gradients: tuple[Tensor, ...], parameters: Parameters, probe: list[Tensor]
) -> tuple[Tensor, ...]:
    slopes = [(gradient * z).sum() for gradient, z in zip(gradients, probe, strict=True)]
    slope = torch.stack(slopes).sum()
    if not slope.requires_grad:  # a loss that is linear in all of them
        return tuple(torch.zeros_like(z) for z in probe)
    return torch.autograd.grad(
        slope, list(parameters.values()), retain_graph=True, materialize_grads=True
    )
