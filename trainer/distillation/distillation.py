"""Distillation: `distill` makes a folder of synthetic images, one stage after another.

At states that networks reach when they are trained on the images so far, each class's gradient by
all of its synthetic images is matched with that by real ones. Only the stage's own images change.

Shapes: N synthetic images, B real ones of a class, S of the stage and a class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset, input_format
from lipt.common.data.sources.image_files import FILE_NAME
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

# Networks that rate how hard an example is; each takes a pass over the data.
_MAX_JUDGES = 3
_JUDGED_AT_ONCE = 256

# Called with (matches done, matches in all, the distance of the last).
OnMatch = Callable[[int, int, float], object]


@dataclass(frozen=True)
class StageResult:
    """A stage's results.

    Attributes:
        synthetic: all images so far, bytes.
        distances: of each match, before its step.
        rounding: the share by which rounding to bytes raises the distance, at the state in which
            the first network enters the stage.
        num_real: how many real images it was distilled from.
    """

    synthetic: SyntheticSet
    distances: tuple[float, ...]
    rounding: float
    num_real: int


def make_stage(
    synthetic: SyntheticSet, real: RealExamples, networks: Networks, on_match: OnMatch
) -> StageResult:
    """Make the images of the next stage; `real` is what it is distilled from, before discarding."""
    settings, stage, device = networks.settings, synthetic.num_stages, networks.device
    if stage and settings.discard:
        losses_N = _losses(synthetic, real, networks)
        real = real.without_easiest(losses_N, settings.discard, at_least=settings.per_stage)
    ids_S = [
        real.draw(label, settings.per_stage, _generator(networks, "first-images", label, stage))
        for label in range(networks.num_classes)
    ]
    labels_N = torch.arange(networks.num_classes).repeat_interleave(settings.per_stage)
    every_N = torch.cat([synthetic.labels_N, labels_N]).to(device)
    earlier_NCHW = synthetic.images_NCHW.to(device, torch.float32) / 255

    match = partial(_match, networks, real, earlier_NCHW, every_N)
    pixels_NCHW = real.pixels(torch.cat(ids_S)).to(device).requires_grad_()
    optimizer = torch.optim.Adam([pixels_NCHW], lr=settings.image_learning_rate)
    distances: list[float] = []
    num_matches = settings.networks * settings.matches
    for number in range(settings.networks):
        network = networks.enter(stage, number, synthetic)
        training = _generator(networks, "inner-steps", number, stage)
        for _ in range(settings.matches):
            draws = _generator(networks, "matches", len(distances), stage)
            optimizer.zero_grad()
            distances.append(match(network, pixels_NCHW, draws))
            optimizer.step()
            with torch.no_grad():
                pixels_NCHW.clamp_(0, 1)
            on_match(len(distances), num_matches, distances[-1])
            every_NCHW = torch.cat([earlier_NCHW, pixels_NCHW.detach()])
            networks.train(network, every_NCHW, every_N, settings.steps_between, training)
    images_NCHW = (pixels_NCHW.detach() * 255).round().to(torch.uint8)
    state = networks.enter(stage, 0, synthetic)
    exact, rounded = (
        match(state, pixels, _generator(networks, "rounding", 0, stage))
        for pixels in (pixels_NCHW, (images_NCHW.to(torch.float32) / 255).requires_grad_())
    )
    return StageResult(
        synthetic.extended(images_NCHW.cpu(), labels_N),
        tuple(distances),
        rounded / exact - 1,
        sum(map(len, real.ids)),
    )


def _match(
    networks: Networks,
    real: RealExamples,
    earlier_NCHW: Tensor,
    every_N: Tensor,
    network: nn.Module,
    pixels_NCHW: Tensor,
    generator: torch.Generator,
) -> float:
    """The distance of all classes together; adds its gradient to the stage's pixels'."""
    settings, total = networks.settings, 0.0
    for label in range(networks.num_classes):
        ids_B = real.draw(label, settings.real_batch, generator)
        augment = Augmentation.drawn(settings, generator)
        pixels_BCHW, weights_B = augment(real.pixels(ids_B)), real.weights_N[ids_B]
        wanted = _gradients(networks, network, pixels_BCHW, label, weights_B)
        own = augment(torch.cat([earlier_NCHW, pixels_NCHW])[every_N == label])
        ones = torch.ones(len(own))
        found = _gradients(networks, network, own, label, ones, differentiable=True)
        apart = distance(wanted, found)
        # By the images alone: the network's weights get no gradient of it.
        (gradient_NCHW,) = torch.autograd.grad(apart, [pixels_NCHW])
        before = pixels_NCHW.grad
        pixels_NCHW.grad = gradient_NCHW if before is None else before + gradient_NCHW
        total += apart.item()
    return total


def _gradients(
    networks: Networks,
    network: nn.Module,
    pixels_BCHW: Tensor,
    label: int,
    weights_B: Tensor,
    *,
    differentiable: bool = False,
) -> tuple[Tensor, ...]:
    device = networks.device
    labels_B = torch.full((len(pixels_BCHW),), label, device=device)
    inputs_B = networks.normalized(pixels_BCHW.to(device))
    return gradients(
        network, inputs_B, labels_B, weights_B.to(device), differentiable=differentiable
    )


def _losses(synthetic: SyntheticSet, real: RealExamples, networks: Networks) -> Tensor:
    """The summed loss of every real example after the stages before; 0 for other rows."""
    losses_N = torch.zeros(len(real.dataset))
    labels_N, stage = real.dataset.labels_N, synthetic.num_stages
    for number in range(min(_MAX_JUDGES, networks.settings.networks)):
        network = networks.enter(stage, number, synthetic)
        with torch.no_grad():
            for ids_B in torch.split(torch.cat(real.ids), _JUDGED_AT_ONCE):
                logits_BC = network(networks.normalized(real.pixels(ids_B).to(networks.device)))
                targets_B = labels_N[ids_B].to(networks.device)
                losses_B = functional.cross_entropy(logits_BC, targets_B, reduction="none")
                losses_N[ids_B] += losses_B.cpu()
    return losses_N


def _generator(networks: Networks, purpose: str, index: int, stage: int) -> torch.Generator:
    return derive_generator(networks.settings.seed, f"distillation-{purpose}-{stage}", index)


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
    """Make the synthetic images, continuing after the last whole stage in the folder.

    The same data, settings, kind of device and number of threads give the same bytes, however
    often it was stopped.

    Args:
        data: images with a class each.
        model: a name such as "convnet", of a model without batch norm.
        settings: how many images, and how.
        out: a folder, which is made; it has the set after every stage.
        subset: the distilled examples; all of `data` where None.
        later: the examples of stages after the first, such as the hardest ones.
        device: "auto", "cpu", "cuda" or "cuda:N".
        allowed_modules: modules that `model` may be imported from.
        tell: called with a line of progress.

    Raises:
        DataError: no images, no classes, or fewer of one than asked for; or the folder holds
            another kind of file.
        SubsetError: a subset is another data set's.
        ConfigError: the model has batch norm, the folder holds another distillation, or there is
            no such device.
        OSError: the folder cannot be written to.
    """
    place = resolve_device(device)
    real = [
        RealExamples.of(data, subset, at_least=settings.per_class),
        RealExamples.of(data, subset if later is None else later, at_least=settings.per_stage),
    ]
    image = input_format(data, torch.arange(len(data)), derive_seed(settings.seed, "normalization"))
    assert isinstance(image, ImageFormat)  # noqa: S101 - real examples are images
    networks = Networks(model, image, len(data.class_names), settings, place, allowed_modules)
    identity: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "model": model,
        "data": data.fingerprint,
        "subset": "" if subset is None else subset.digest,
        "later": "" if later is None else later.digest,
    }

    def on_match(stage: int, done: int, total: int, apart: float) -> None:
        where = f"stage {stage + 1} of {settings.stages}"
        tell(f"{where}: match {done} of {total}, distance {apart:.1f}")

    with pinned_kernels(torch.get_num_threads()):
        networks.untrained(0)  # refuses an unsuitable model before anything is written
        synthetic = _begun(out, data, image, identity)
        for stage in range(synthetic.num_stages, settings.stages):
            began = monotonic()
            # The same draws of layers such as dropout after a restart.
            layers = derive_seed(settings.seed, "distillation-layers", stage)
            with seeded_generators(layers, place):
                made = make_stage(
                    synthetic, real[min(stage, 1)], networks, partial(on_match, stage)
                )
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
    """The folder's set of the same distillation, or an empty one."""
    if not (out / FILE_NAME).is_file():
        out.mkdir(parents=True, exist_ok=True)
        figures = {"source": data.source, "mean": image.mean, "std": image.std}
        manifest = {"identity": identity, **figures, "stages": []}
        return replace(SyntheticSet.empty(image.shape, data.class_names), manifest=manifest)
    found = SyntheticSet.load(out)
    changed = differences(found.manifest.get("identity", {}), identity)
    if changed:
        raise ConfigError(
            f"{out} holds another distillation: {changed}. Name another folder, or remove it."
        )
    return found
