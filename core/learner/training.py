"""SGD over a shard's minibatches: the part of a learner that takes the time.

A *step* is one pass over the shard's M minibatches. The paper says both that a
learner "iterates over its minibatches for K steps" and that K stays at 10 because
of overfitting, and its authors' code calls K selection epochs; with M = 1 (the
paper's CIFAR-10 setting) a pass and an optimizer step are the same.

Shapes: N examples of the shard, B of a minibatch.
Source: LiPT (Ro et al. 2023), section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import Precision
from lipt.common.config.tasks import LearnerTask
from lipt.common.errors import ConfigError, LearnerDivergedError, LearnerStoppedError
from lipt.common.inputs.model_input import Stored, in_layout, to_model_input
from lipt.common.inputs.specs import call_model
from lipt.common.models import memory_format
from lipt.core.learner.minibatches import BatchTimes, Examples, minibatches


@dataclass(frozen=True)
class ComputeMode:
    """Where and in what form a model is computed."""

    device: torch.device
    bfloat16: bool
    memory_format: torch.memory_format

    def loss(
        self, model: nn.Module, examples_B: Stored, targets_B: Tensor, task: LearnerTask
    ) -> Tensor:
        """Mean loss (0-d, float32) of stored examples on the device."""
        inputs_B = to_model_input(examples_B, task.inputs, self.device)
        inputs_B = in_layout(inputs_B, self.memory_format)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            logits_BC = call_model(model, inputs_B)
        return task.target.mean_loss(logits_BC, targets_B)


def compute_mode(task: LearnerTask, device: torch.device) -> ComputeMode:
    """What the device gains from, within what the task allows.

    AUTO is bfloat16 autocast on a CUDA device that computes in it, else float32;
    CPUs differ too much in bfloat16 for one seed to give one soup.

    Raises:
        ConfigError: the task asks for bfloat16 and the CUDA device has none.
    """
    precision = task.learners.precision
    on_cuda = device.type == "cuda"
    supported = on_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision is Precision.BFLOAT16 and on_cuda and not supported:
        raise ConfigError(
            f"learners.precision is bfloat16, but {torch.cuda.get_device_name(device)} does not "
            "compute in it. Set learners.precision to auto or float32."
        )
    return ComputeMode(
        device=device,
        bfloat16=precision is Precision.BFLOAT16 or (precision is Precision.AUTO and supported),
        memory_format=memory_format(task.model),
    )


def train_on_shard(
    model: nn.Module,
    task: LearnerTask,
    examples: Examples,
    targets_N: Tensor,
    mode: ComputeMode,
    *,
    on_step: Callable[[int, float], None],
    should_stop: Callable[[], bool],
    on_batch: Callable[[BatchTimes, float], None] = lambda *_: None,
) -> float:
    """Train in place for `num_steps` passes, with a constant learning rate.

    Every pass cuts the shard into minibatches anew and augments anew, by draws
    from the task's seed and the pass's number alone.

    Args:
        model: laid out on the mode's device; in training mode, but for what is frozen.
        task: how to train.
        examples: as they are stored, on the mode's device; or encoded.
        targets_N: what the model is to give of them, on the mode's device.
        mode: where and in what form to compute.
        on_step: called after each pass with its number from 1 and its mean loss.
        should_stop: asked before each minibatch.
        on_batch: called after each minibatch with its times, and when its step had ended: where
            the device has a queue of its own, when all of it was in there.

    Returns:
        The last pass's mean loss, of the augmented examples.

    Raises:
        DataError: an image cannot be decoded.
        LearnerStoppedError: `should_stop` said so.
        LearnerDivergedError: a pass's mean loss is not finite.
    """
    learners = task.learners
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=learners.learning_rate,
        momentum=learners.momentum,
        weight_decay=learners.weight_decay,
    )
    per_pass = math.ceil(len(targets_N) / learners.batch_size)
    loss = math.nan
    with minibatches(task, examples, targets_N, mode.device) as batches:
        for step in range(learners.num_steps):
            # Summed on the device: reading each minibatch's loss would make it wait.
            loss_sum = torch.zeros((), device=mode.device)
            for batch in islice(batches, per_pass):
                if should_stop():
                    raise LearnerStoppedError(
                        f"the learner was stopped in step {step + 1} of {learners.num_steps}. "
                        "Its assignment can be done again from the start."
                    )
                batch_loss = mode.loss(model, batch.examples_B, batch.targets_B, task)
                optimizer.zero_grad()
                torch.autograd.backward(batch_loss)
                optimizer.step()
                loss_sum += batch_loss.detach() * len(batch.targets_B)
                on_batch(batch.times, perf_counter())
            loss = float(loss_sum) / len(targets_N)
            if not math.isfinite(loss):
                raise diverged(task, f"the loss is {loss} after step {step + 1}")
            on_step(step + 1, loss)
    return loss


def diverged(task: LearnerTask, what: str) -> LearnerDivergedError:
    """The error for a learner that is no longer finite; `what` says where it showed."""
    learners = task.learners
    return LearnerDivergedError(
        f"the learner diverged: {what} of {learners.num_steps}, with learning rate "
        f"{learners.learning_rate} and precision {learners.precision}. "
        "Lower learners.learning_rate, or set learners.precision to float32."
    )
