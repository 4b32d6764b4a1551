"""Check: short trainings on mixtures, all of the same number of steps, scored on the target.

They start from the shared theta*, and a cosine leaves little noise of the last steps.

Shapes: K sources, B examples of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.tensor_files import Weights, copy_to_cpu
from lipt.core.pretraining.sharding import draw_by_shares
from lipt.core.pretraining.training import ForwardPass, optimizer_of
from lipt.core.workspace import Workspace
from lipt.data.inputs.model_input import Stored, split_stored
from lipt.data.inputs.specs import InputFormat
from lipt.data.targets.values import Target
from lipt.models.head import evaluation_mode, freeze
from lipt.models.registry import memory_format

CHECK_STEPS = 300


@dataclass(frozen=True)
class MixtureTraining:
    """Trainings that differ in their mixture and seed alone."""

    workspace: Workspace
    config: RunConfig
    inputs: InputFormat
    initial: Weights
    source_ids: Sequence[Tensor]
    num_steps: int

    def train(self, shares_K: Tensor, seed: int) -> Weights:
        """The weights after training on examples drawn by shares."""
        settings, dataset = self.config.learners, self.workspace.dataset
        draws = derive_generator(self.config.seed, "mixture check", seed)
        total = self.num_steps * settings.batch_size
        ids = draw_by_shares(self.source_ids, shares_K, total, generator=draws)
        model = self._model(self.initial).train()
        freeze(model, self.workspace.frozen(self.config, model))
        forward, rate = self._forward(dataset.target), settings.learning_rate
        optimizer = optimizer_of(dataset.target, settings.optimizer)
        sgd = optimizer(
            model, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        layers = derive_seed(self.config.seed, "mixture check layers", seed)
        device = self.workspace.device
        with seeded_generators(layers, device), computation(settings.cpu_threads):
            for step, ids_B in enumerate(torch.split(ids, settings.batch_size)):
                targets_B = dataset.targets_N[ids_B].to(device)
                parts = forward.loss_parts(
                    model, dataset.examples(ids_B), targets_B, settings.accumulation_steps
                )
                sgd.step(parts, rate * (1 + math.cos(math.pi * step / self.num_steps)) / 2)
        return copy_to_cpu(model.state_dict())

    def score(self, weights: Weights, examples: Stored, targets_N: Tensor) -> tuple[float, float]:
        """Mean loss and score of weights, with their own batch-norm statistics."""
        model, target = self._model(weights), self.workspace.dataset.target
        forward = self._forward(target)
        size = self.workspace.batch_size
        parts = zip(split_stored(examples, size), torch.split(targets_N, size), strict=True)
        tally, losses = target.tally(), list[Tensor]()
        # A computation sets its own gradient mode.
        with evaluation_mode(model), computation(1), torch.inference_mode():
            for part_B, targets_B in parts:
                outputs_BT = forward(model, part_B).float().cpu()
                tally.add(outputs_BT, targets_B)
                losses.append(target.losses(outputs_BT, targets_B))
        return float(torch.cat(losses).mean()), tally.score()

    def accuracies(
        self, mixtures: Mapping[str, Tensor], target_ids: Tensor, seeds: Iterable[int]
    ) -> dict[str, tuple[float, ...]]:
        """Each mixture's accuracies, one per seed; equal mixtures are trained once."""
        dataset = self.workspace.dataset
        target = dataset.examples(target_ids), dataset.targets_N[target_ids]
        known: dict[tuple[float, ...], tuple[float, ...]] = {}
        for shares_K in mixtures.values():
            if (key := tuple(shares_K.tolist())) not in known:
                known[key] = tuple(
                    self.score(self.train(shares_K, seed), *target)[1] for seed in seeds
                )
        return {name: known[tuple(shares_K.tolist())] for name, shares_K in mixtures.items()}

    def _model(self, weights: Weights) -> nn.Module:
        model = self.workspace.new_model(self.config)
        model.load_state_dict(weights)
        return model

    def _forward(self, target: Target) -> ForwardPass:
        layout = memory_format(self.config.model)
        return ForwardPass(self.inputs, target, self.workspace.device, layout, bfloat16=False)
