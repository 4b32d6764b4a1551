"""One stage: its images are made to give, with those of the stages before, the real gradient.

At states that networks come through when they are trained on the images so far, each class's
gradient by all of its synthetic images is matched with that by real ones. Only the stage's own
images follow the difference; those of before stay as they are.

Shapes: N synthetic images, B real ones of a class, S of the stage and a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.trainer.distillation.matching import distance, gradients
from lipt.trainer.distillation.network import Networks
from lipt.trainer.distillation.real import RealExamples
from lipt.trainer.distillation.siamese import Augmentation
from lipt.trainer.distillation.synthetic import SyntheticSet

# Looked at for how hard an example is: more agree on it, and each takes a pass over the data.
_MAX_JUDGES = 3
_JUDGED_AT_ONCE = 256

# Called with (matches done, matches in all, the distance of the last).
OnMatch = Callable[[int, int, float], object]


@dataclass(frozen=True)
class StageResult:
    """What a stage has made.

    Attributes:
        synthetic: all images so far, bytes.
        distances: of each match, before its step.
        rounding: the share by which rounding to bytes raises the distance, at the state that the
            first network enters the stage in.
        num_real: how many real images it was distilled from.
    """

    synthetic: SyntheticSet
    distances: tuple[float, ...]
    rounding: float
    num_real: int


def make_stage(
    synthetic: SyntheticSet, real: RealExamples, networks: Networks, on_match: OnMatch
) -> StageResult:
    """Make the images of the stage that comes next.

    Args:
        synthetic: the stages before; not changed.
        real: what the stage is distilled from, before any are discarded.
        networks: what images are matched with.
        on_match: called after every match.
    """
    settings, stage = networks.settings, synthetic.num_stages
    if stage and settings.discard:
        losses_N = _losses(synthetic, real, networks)
        real = real.without_easiest(losses_N, settings.discard, at_least=settings.per_stage)
    ids_S = [
        real.draw(label, settings.per_stage, _generator(networks, "first-images", label, stage))
        for label in range(networks.num_classes)
    ]
    labels_N = torch.arange(networks.num_classes).repeat_interleave(settings.per_stage)
    matching = _Matching(synthetic, real, networks, labels_N.to(networks.device))
    pixels_NCHW = real.pixels(torch.cat(ids_S)).to(networks.device).requires_grad_()
    optimizer = torch.optim.Adam([pixels_NCHW], lr=settings.image_learning_rate)
    distances: list[float] = []
    num_matches = settings.networks * settings.matches
    for number in range(settings.networks):
        network = networks.enter(stage, number, synthetic)
        training = _generator(networks, "inner-steps", number, stage)
        for _ in range(settings.matches):
            draws = _generator(networks, "matches", len(distances), stage)
            optimizer.zero_grad()
            distances.append(matching.backward(network, pixels_NCHW, draws))
            optimizer.step()
            with torch.no_grad():
                pixels_NCHW.clamp_(0, 1)
            on_match(len(distances), num_matches, distances[-1])
            every_NCHW, every_N = matching.with_earlier(pixels_NCHW.detach())
            networks.train(network, every_NCHW, every_N, settings.steps_between, training)
    images_NCHW = (pixels_NCHW.detach() * 255).round().to(torch.uint8)
    # Where the networks of the stage begin.
    state = networks.enter(stage, 0, synthetic)
    exact, rounded = (
        matching.backward(state, pixels, _generator(networks, "rounding", 0, stage))
        for pixels in (pixels_NCHW, (images_NCHW.to(torch.float32) / 255).requires_grad_())
    )
    return StageResult(
        synthetic.extended(images_NCHW.cpu(), labels_N),
        tuple(distances),
        rounded / exact - 1,
        sum(map(len, real.ids)),
    )


class _Matching:
    """The matches of one stage, with what all of them have in common."""

    def __init__(
        self, synthetic: SyntheticSet, real: RealExamples, networks: Networks, labels_N: Tensor
    ) -> None:
        self._real, self._networks, self._labels_N = real, networks, labels_N
        images_NCHW, earlier_N = synthetic.images_NCHW, synthetic.labels_N
        self._earlier_NCHW = images_NCHW.to(networks.device, torch.float32) / 255
        self._earlier_N = earlier_N.to(networks.device)

    def with_earlier(self, pixels_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The images of all stages, and their labels."""
        labels_N = torch.cat([self._earlier_N, self._labels_N])
        return torch.cat([self._earlier_NCHW, pixels_NCHW]), labels_N

    def backward(
        self, network: nn.Module, pixels_NCHW: Tensor, generator: torch.Generator
    ) -> float:
        """The distance of all classes together; its gradient is added to the stage's pixels'."""
        networks, settings = self._networks, self._networks.settings
        total = 0.0
        for label in range(networks.num_classes):
            ids_B = self._real.draw(label, settings.real_batch, generator)
            augment = Augmentation.drawn(settings, generator)
            wanted = self._gradients(
                network, augment(self._real.pixels(ids_B)), label, self._real.weights_N[ids_B]
            )
            every_NCHW, every_N = self.with_earlier(pixels_NCHW)
            own = augment(every_NCHW[every_N == label])
            ones = torch.ones(len(own))
            found = self._gradients(network, own, label, ones, differentiable=True)
            apart = distance(wanted, found)
            # By the images alone: the network's weights get no gradient of it.
            (gradient_NCHW,) = torch.autograd.grad(apart, [pixels_NCHW])
            pixels_NCHW.grad = (
                gradient_NCHW if pixels_NCHW.grad is None else pixels_NCHW.grad + gradient_NCHW
            )
            total += apart.item()
        return total

    def _gradients(
        self,
        network: nn.Module,
        pixels_BCHW: Tensor,
        label: int,
        weights_B: Tensor,
        *,
        differentiable: bool = False,
    ) -> tuple[Tensor, ...]:
        device = self._networks.device
        labels_B = torch.full((len(pixels_BCHW),), label, device=device)
        inputs_B = self._networks.normalized(pixels_BCHW.to(device))
        return gradients(
            network, inputs_B, labels_B, weights_B.to(device), differentiable=differentiable
        )


def _losses(synthetic: SyntheticSet, real: RealExamples, networks: Networks) -> Tensor:
    """The mean loss of every real example after the stages before; 0 for rows that are none."""
    losses_N = torch.zeros(len(real.dataset))
    labels_N, stage = real.dataset.labels_N, synthetic.num_stages
    with torch.no_grad():
        for number in range(min(_MAX_JUDGES, networks.settings.networks)):
            with torch.enable_grad():
                network = networks.enter(stage, number, synthetic)
            for ids_B in torch.split(torch.cat(real.ids), _JUDGED_AT_ONCE):
                logits_BC = network(networks.normalized(real.pixels(ids_B).to(networks.device)))
                targets_B = labels_N[ids_B].to(networks.device)
                losses_B = functional.cross_entropy(logits_BC, targets_B, reduction="none")
                losses_N[ids_B] += losses_B.cpu()
    return losses_N


def _generator(networks: Networks, purpose: str, index: int, stage: int) -> torch.Generator:
    return derive_generator(networks.settings.seed, f"distillation-{purpose}-{stage}", index)
