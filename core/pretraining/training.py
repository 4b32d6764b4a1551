"""Training: a model's forward pass and loss, and steps of SGD or AdamW.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.config.run_config import LearnerOptimizer
from lipt.common.errors import ConfigError
from lipt.common.tensor_files import Weights
from lipt.core.passes import require_finite_rows
from lipt.data.inputs.model_input import Stored, in_layout, num_stored, split_evenly, to_model_input
from lipt.data.inputs.specs import InputFormat, Inputs, call_model
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import Target
from lipt.models.head import evaluation_mode

# Decay of the mean of squared gradients: short learners need a short memory.
_SQUARES = 0.95


def trained_outputs(model: Callable[..., Any], inputs_B: Inputs) -> Tensor:
    """A model's logits; ConfigError for batch norm of one value in a model in training."""
    try:
        return call_model(model, inputs_B)
    except ConfigError as error:
        layers = model.modules() if isinstance(model, nn.Module) else ()
        alone = num_stored(inputs_B) == 1 and isinstance(error.__cause__, ValueError)
        if not alone or not any(isinstance(layer, _BatchNorm) for layer in layers):
            raise
        raise ConfigError(
            "the model's batch norm has no variance in a batch of one example. Train on 2 examples "
            "or more, in batches of 2 or more, or use a model without batch norm."
        ) from error


@dataclass(frozen=True)
class ForwardPass:
    """From stored examples to logits, in training and evaluation.

    memory_format: of the model's inputs. bfloat16: whether it runs under bfloat16 autocast.
    """

    inputs: InputFormat
    target: Target
    device: torch.device
    memory_format: torch.memory_format
    bfloat16: bool

    def __call__(self, model: Callable[..., Any], examples_B: Stored) -> Tensor:
        """The logits, B x C, of stored examples on any device."""
        inputs_B = in_layout(
            to_model_input(examples_B, self.inputs, self.device), self.memory_format
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            return trained_outputs(model, inputs_B)

    def mean_loss(self, model: nn.Module, examples_B: Stored, targets_B: Tensor) -> Tensor:
        return self.target.mean_loss(self(model, examples_B), targets_B)

    def loss_parts(
        self, model: nn.Module, examples_B: Stored, targets_B: Tensor, num_parts: int
    ) -> Iterator[Tensor]:
        """Parts of a batch's mean loss, each computed when it is asked for; their sum is the mean.

        A batch norm sees one part at a time.
        """
        size, num_parts = len(targets_B), min(num_parts, len(targets_B))
        parts = split_evenly(examples_B, num_parts), targets_B.tensor_split(num_parts)
        for examples, targets in zip(*parts, strict=True):
            loss = self.mean_loss(model, examples, targets)
            # An example's loss is a mean of its own, so parts weigh by their examples.
            yield loss if num_parts == 1 else loss * (len(targets) / size)


class Sgd:
    """SGD with momentum and `torch.optim.SGD`'s options; frozen parameters stay.

    A larger gradient is scaled down to the norm `max_norm`, over all parameters; with 0, none is.
    """

    def __init__(self, model: nn.Module, *, max_norm: float = 0.0, **options: Any) -> None:
        self._model, self._max_norm = model, max_norm
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), **options)

    def step(self, loss: Tensor | Iterable[Tensor], learning_rate: float | None = None) -> Tensor:
        """Take a step on a loss (0-d) or on the sum of parts, by another learning rate if given.

        A part's graph is freed before the next part is made. Returns the loss, detached.
        """
        if learning_rate is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
        self._optimizer.zero_grad()
        losses = list[Tensor]()
        for part in [loss] if isinstance(loss, Tensor) else loss:
            torch.autograd.backward(part)
            losses.append(part.detach())
        if self._max_norm:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        self._optimizer.step()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def momentum(self) -> Weights:
        """The momentum buffers by the parameter's name; empty before the first step."""
        state = self._optimizer.state
        return {
            name: state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
            if state.get(parameter, {}).get("momentum_buffer") is not None
        }

    def restore_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """Continue with buffers that `momentum` returned."""
        for name, parameter in self._model.named_parameters():
            if name in momentum:
                # In the parameter's memory format.
                buffer = torch.empty_like(parameter).copy_(momentum[name])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer


# What AdamW keeps for each parameter.
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class AdamW(Sgd):
    """AdamW for models of tokens, whose layers need different rates of SGD.

    `momentum` is that of the gradient's mean. Gradients are scaled down to the norm 1.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        self._model, self._max_norm = model, 1.0
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(momentum, _SQUARES), weight_decay=weight_decay
        )

    def momentum(self) -> Weights:
        """The means of gradients and squares, and the number of steps, by parameter."""
        return {
            f"{part}.{name}": self._optimizer.state[parameter][part]
            for name, parameter in self._model.named_parameters()
            for part in _MOMENTS
            if part in self._optimizer.state.get(parameter, {})
        }

    def restore_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            moments = {part: momentum.get(f"{part}.{name}") for part in _MOMENTS}
            if moments["step"] is not None:
                self._optimizer.state[parameter] = {
                    # The number of steps stays on the CPU.
                    part: value.clone() if part == "step" else value.to(parameter.device, copy=True)
                    for part, value in moments.items()
                    if value is not None
                }


def optimizer_of(
    target: Target, optimizer: LearnerOptimizer = LearnerOptimizer.AUTO
) -> type[Sgd | AdamW]:
    """The optimizer that is wanted, or that of a kind of target."""
    if optimizer is LearnerOptimizer.AUTO:
        return AdamW if target.kind is TargetKind.TOKENS else Sgd
    return AdamW if optimizer is LearnerOptimizer.ADAMW else Sgd


def require_finite_outputs(model: nn.Module, outputs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Refuse examples on which a model is not finite before any training: no rate helps.

    `outputs` yields ids and their outputs, B x C or B x L x V, computed on demand in evaluation
    mode.
    """
    ids, finite = list[Tensor](), list[Tensor]()
    with evaluation_mode(model), torch.inference_mode():
        for ids_B, outputs_B in outputs:
            ids.append(ids_B)
            finite.append(outputs_B.isfinite().flatten(1).all(dim=1))
    remedy = "It was not trained yet, so no learning rate helps."
    require_finite_rows(torch.cat(finite), torch.cat(ids), "outputs", remedy=remedy)
