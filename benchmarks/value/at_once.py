"""Many main trainings at once on one GPU: each step is a branch of one CUDA graph.

A small network leaves most of a GPU idle, and its kernels wait for their launches. The recipe is
that of `lipt train` but for an epoch's smaller last batch, which is left out, and for the limit of
gradients' norms, which `resnet8` does not reach; draws differ from the product's.

Shapes: P pixels' rows, T steps, B of a batch, K of a subset, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.trainer.main_training import Recipe

# The functions that its optimizers are made of have no types.
FUSED: Any = torch
_UNROLLED = 5
_TEST_BATCH = 5_000


@dataclass(frozen=True)
class Training:
    """One training: of `model`, a copy of it, on some rows of the pixels in the pool.

    targets_KC: probabilities. mean_C, std_C: of the normalization. num_drawn: examples of an
    epoch, drawn anew for each; None takes all.
    """

    model: nn.Module
    rows_K: Tensor
    targets_KC: Tensor
    mean_C: Tensor
    std_C: Tensor
    recipe: Recipe
    num_drawn: int | None = None


class Lane:
    """Buffers of one training at a time, and the step that reads them."""

    def __init__(self, training: Training, pool_PCHW: Tensor, num_steps: int) -> None:
        device, recipe = pool_PCHW.device, training.recipe
        self._pool_PCHW, self._recipe = pool_PCHW, recipe
        size, num_classes = recipe.batch_size, training.targets_KC.shape[1]
        self.model = copy.deepcopy(training.model).to(device).to(memory_format=torch.channels_last)
        self._parameters = list(self.model.parameters())
        self._momenta = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._rows_TB = torch.zeros(num_steps, size, dtype=torch.int64, device=device)
        self._targets_TBC = torch.zeros(num_steps, size, num_classes, device=device)
        # Top, left, and whether it is mirrored.
        self._crops_TB3 = torch.zeros(num_steps, size, 3, dtype=torch.int64, device=device)
        self._rates_T = torch.zeros(num_steps, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        channels = pool_PCHW.shape[1]
        self._mean = torch.zeros(1, channels, 1, 1, device=device)
        self._std = torch.ones(1, channels, 1, 1, device=device)
        self._side = torch.arange(pool_PCHW.shape[2], device=device)
        self._each_B11 = torch.arange(size, device=device)[:, None, None]

    @torch.no_grad()
    def load(self, training: Training) -> None:
        """Begin a training."""
        recipe, num_steps = training.recipe, len(self._rates_T)
        generator = torch.Generator().manual_seed(recipe.seed)
        batches_TB = torch.stack(list(_batches(training, generator, num_steps)))
        self.model.load_state_dict(training.model.state_dict())
        for momentum in self._momenta:
            momentum.zero_()
        crops_TB3 = torch.randint(
            2 * recipe.padding + 1, (*batches_TB.shape, 3), generator=generator
        )
        crops_TB3[:, :, 2] = torch.randint(2, batches_TB.shape, generator=generator)
        if recipe.augmentation == "crop":
            crops_TB3[:, :, 2] = 0
        rates = [recipe.learning_rate_at(step, num_steps) for step in range(num_steps)]
        self._rows_TB.copy_(training.rows_K[batches_TB])
        self._targets_TBC.copy_(training.targets_KC[batches_TB])
        self._crops_TB3.copy_(crops_TB3)
        self._rates_T.copy_(torch.tensor(rates))
        self._mean.copy_(training.mean_C.view_as(self._mean))
        self._std.copy_(training.std_C.view_as(self._std))
        self._step.zero_()

    def normalized(self, images_BCHW: Tensor) -> Tensor:
        """Input of the model from uint8 images."""
        inputs_BCHW = (images_BCHW.float() / 255 - self._mean) / self._std
        return inputs_BCHW.contiguous(memory_format=torch.channels_last)

    def take_step(self) -> None:
        """A step of SGD; it can be captured, as all it reads lies on the device."""
        rows_B = self._rows_TB.index_select(0, self._step)[0]
        crops_B3 = self._crops_TB3.index_select(0, self._step)[0]
        padding = [self._recipe.padding] * 4
        padded_BCHW = functional.pad(self._pool_PCHW.index_select(0, rows_B), padding)
        columns_W = torch.where(crops_B3[:, 2:] != 0, self._side.flip(0), self._side)
        tops_BH1 = (crops_B3[:, :1] + self._side)[:, :, None]
        lefts_B1W = (crops_B3[:, 1:2] + columns_W)[:, None, :]
        images_BHWC = padded_BCHW[self._each_B11, :, tops_BH1, lefts_B1W]
        logits_BC = self.model(self.normalized(images_BHWC.permute(0, 3, 1, 2)))
        targets_BC = self._targets_TBC.index_select(0, self._step)[0]
        loss = functional.cross_entropy(logits_BC, targets_BC)
        gradients = list(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():
            # The optimizer's own functions, with a learning rate that lies on the device.
            FUSED._foreach_add_(gradients, self._parameters, alpha=self._recipe.weight_decay)
            FUSED._foreach_mul_(self._momenta, self._recipe.momentum)
            FUSED._foreach_add_(self._momenta, gradients)
            rate = self._rates_T.index_select(0, self._step)[0]
            moves = FUSED._foreach_mul(self._momenta, rate)  # noqa: SLF001
            FUSED._foreach_sub_(self._parameters, moves)
            self._step.add_(1)


class Lanes:
    """Trains up to `num_lanes` at once; all have the shapes and the recipe of `like`, but its seed.

    On a CPU one after the other, for tests.
    """

    def __init__(self, like: Training, pool_PCHW: Tensor, num_lanes: int) -> None:
        self._num_steps = like.recipe.num_steps(len(like.rows_K))
        self._lanes = [Lane(like, pool_PCHW, self._num_steps) for _ in range(num_lanes)]
        self._pool_PCHW = pool_PCHW
        self._graph: torch.cuda.CUDAGraph | None = None
        if pool_PCHW.device.type == "cuda":
            self._graph = self._captured()

    def _captured(self) -> torch.cuda.CUDAGraph:
        streams, first = [torch.cuda.Stream() for _ in self._lanes], torch.cuda.Stream()
        for lane, stream in zip(self._lanes, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            # Kernels are chosen before they are captured.
            with torch.cuda.stream(stream):
                lane.take_step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=first):
            for lane, stream in zip(self._lanes, streams, strict=True):
                stream.wait_stream(first)
                with torch.cuda.stream(stream):
                    for _ in range(_UNROLLED):
                        lane.take_step()
            for stream in streams:
                first.wait_stream(stream)
        torch.cuda.synchronize()
        return graph

    def train(self, trainings: Sequence[Training]) -> list[Lane]:
        """The lanes with trained models, until the next call; at most as many as there are."""
        lanes = self._lanes[: len(trainings)]
        # Idle lanes train once more what the first one does.
        for place, lane in enumerate(self._lanes):
            if place < len(trainings) or self._graph is not None:
                lane.load(trainings[place if place < len(trainings) else 0])
        if self._graph is None:
            for lane in lanes:
                for _ in range(self._num_steps):
                    lane.take_step()
            return lanes
        if self._num_steps % _UNROLLED:
            raise ValueError(f"{self._num_steps} steps are not a multiple of {_UNROLLED}")
        torch.cuda.synchronize()
        for _ in range(self._num_steps // _UNROLLED):
            self._graph.replay()
        torch.cuda.synchronize()
        return lanes

    @torch.no_grad()
    def accuracy(self, lane: Lane, rows_K: Tensor, labels_K: Tensor) -> float:
        """Of a trained model on rows of the pool, without augmentation; in [0, 1]."""
        lane.model.eval()
        right = 0.0
        for rows_B, labels_B in zip(
            torch.split(rows_K, _TEST_BATCH), torch.split(labels_K, _TEST_BATCH), strict=True
        ):
            images_BCHW = self._pool_PCHW[rows_B.to(self._pool_PCHW.device)]
            found_B = lane.model(lane.normalized(images_BCHW)).argmax(dim=1).cpu()
            right += float((found_B == labels_B).sum())
        lane.model.train()
        return right / len(rows_K)


def _batches(training: Training, generator: torch.Generator, num_steps: int) -> Iterator[Tensor]:
    """Places in the subset, batch by batch, in another order in every epoch."""
    done = 0
    while done < num_steps:
        order_K = torch.randperm(len(training.rows_K), generator=generator)
        batches = training.recipe.batches(order_K[: training.num_drawn])[: num_steps - done]
        yield from batches
        done += len(batches)
