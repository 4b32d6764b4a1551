"""Distillation: `distill` makes a folder of synthetic images, one stage after another.

Shapes: N synthetic images, B real ones of a class, S of the stage and a class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset, input_format
from lipt.common.data.sources.distilled import FILE_NAME
from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels, seeded_generators
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.process.devices import resolve_device
from lipt.trainer.distillation.matching import (
    Augmentation,
    Distillation,
    Networks,
    distance,
    gradients,
)
from lipt.trainer.distillation.synthetic import RealExamples, SyntheticSet
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.writing.formatting import differences

# At states that networks come through when they are trained on the images so far, each class's
# gradient by all of its synthetic images is matched with that by real ones. Only the stage's own
# images follow the difference; those of before stay as they are.

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


# The real images whose means and deviations the networks' inputs are scaled by.
_NORMALIZATION = "normalization"


def distill(
    data: Dataset,
    model: str,
    settings: Distillation,
    out: Path,
    *,
    subset: Subset | None = None,
    later: Subset | None = None,
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    tell: Callable[[str], object] = lambda _: None,
) -> SyntheticSet:
    """Make the synthetic images, and go on after the last whole stage where some are there.

    With the same data, settings, kind of device and number of threads they are the same bytes,
    however often it was stopped.

    Args:
        data: images with a class each.
        model: a name such as "convnet", of a model without batch norm.
        settings: how many, and how.
        out: a folder, which is made; it has the set after every stage.
        subset: what is distilled; all of `data` where None.
        later: what stages after the first are distilled from, such as the hardest examples.
        device: "auto", "cpu", "cuda" or "cuda:N".
        allowed_modules: modules that `model` may be imported from.
        tell: called with a line on how far it is.

    Returns:
        All images.

    Raises:
        DataError: there are no images, no classes, or fewer of one than asked for; the folder
            holds another kind of file.
        SubsetError: a subset is another data set's.
        ConfigError: the model has batch norm; the folder holds another distillation; the device
            does not exist.
        OSError: the folder cannot be written to.
    """
    place = resolve_device(device)
    real = [
        RealExamples.of(data, subset, at_least=settings.per_class),
        RealExamples.of(data, subset if later is None else later, at_least=settings.per_stage),
    ]
    image = input_format(data, torch.arange(len(data)), derive_seed(settings.seed, _NORMALIZATION))
    assert isinstance(image, ImageFormat)  # noqa: S101 - real examples are images
    networks = Networks(model, image, len(data.class_names), settings, place, allowed_modules)
    identity: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "model": model,
        "data": data.fingerprint,
        "subset": "" if subset is None else subset.digest,
        "later": "" if later is None else later.digest,
    }
    with pinned_kernels(torch.get_num_threads()):
        networks.untrained(0)  # what no model can be distilled with is refused before anything
        synthetic = _begun(out, data, image, identity)
        for stage in range(synthetic.num_stages, settings.stages):
            began, where = monotonic(), f"stage {stage + 1} of {settings.stages}"

            def on_match(done: int, total: int, apart: float, where: str = where) -> None:
                tell(f"{where}: match {done} of {total}, distance {apart:.1f}")

            # Layers such as dropout draw alike, whether the stage follows another or a restart.
            layers = derive_seed(settings.seed, "distillation-layers", stage)
            with seeded_generators(layers, place):
                made = make_stage(synthetic, real[min(stage, 1)], networks, on_match)
            noted = {
                "distance": made.distances[-1],
                "rounding": made.rounding,
                "real_images": made.num_real,
                "seconds": monotonic() - began,
            }
            manifest = dict(synthetic.manifest)
            manifest["stages"] = [*manifest["stages"], noted]
            synthetic = replace(made.synthetic, manifest=manifest)
            synthetic.save(out)
    return synthetic


def _begun(out: Path, data: Dataset, image: ImageFormat, identity: dict[str, Any]) -> SyntheticSet:
    """What the folder holds of the same distillation; an empty set where it holds nothing."""
    if not (out / FILE_NAME).is_file():
        out.mkdir(parents=True, exist_ok=True)
        figures = {"source": data.source, "mean": image.mean, "std": image.std}
        manifest = {"identity": identity, **figures, "stages": []}
        empty = SyntheticSet.empty(image.shape, data.class_names)
        return replace(empty, manifest=manifest)
    found = SyntheticSet.load(out)
    changed = differences(found.manifest.get("identity", {}), identity)
    if changed:
        raise ConfigError(
            f"{out} holds another distillation: {changed}. Name another folder, or remove it."
        )
    return found
