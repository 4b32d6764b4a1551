"""Progressive distillation of image sets: few synthetic images, made in stages. Experimental.

Networks are trained on the images so far. At their states, each class's gradient by its synthetic
images is matched with that by real images. Only the stage's own images change.

Shapes: N examples or images, B drawn ones, M of a class, S of the stage and a class, R outputs of a
layer. Sources: Chen et al. 2024, "Data Distillation Can Be Like Vodka: Distilling More Times For
Better Quality" (arXiv:2310.06982), the stages; Zhao, Mopuri and Bilen 2021, "Dataset Condensation
with Gradient Matching" (arXiv:2006.05929), the distance of equation 10; Zhao and Bilen 2021,
"Dataset Condensation with Differentiable Siamese Augmentation" (arXiv:2102.08259), here with main
training's two transformations.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.computation import computation
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import ConfigError, DataError
from lipt.common.process.devices import resolve_device
from lipt.common.tensor_files import bytes_of, pack
from lipt.data.dataset import Dataset, input_format
from lipt.data.images.formats import crop_flip, mild_augmentation, to_image
from lipt.data.inputs.specs import ImageFormat, ImageSpec
from lipt.data.sources.files import (
    CLASS_NAMES,
    FILE_NAME,
    IMAGES,
    LABELS,
    MANIFEST,
    STAGES,
    DistilledFile,
    read_distilled,
)
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import build_model
from lipt.trainer.files import write_atomically
from lipt.trainer.formatting import differences
from lipt.trainer.main_training.steps import require_for
from lipt.trainer.subsets.subset import Subset

_BATCH_SIZE = 256
_MOMENTUM = 0.9


class Distillation(BaseModel):
    """Settings of the synthetic images."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    per_class: int = Field(ge=1)
    """Synthetic images of each class, all stages together."""
    stages: int = Field(default=1, ge=1)
    """Stages, each with its share of the images; 1 is ordinary gradient matching."""
    networks: int = Field(default=10, ge=1)
    """Networks that a stage's images are matched with, one after another, each with first weights
    of its own, and the same ones in every stage."""
    matches: int = Field(default=10, ge=1)
    """Matches with each network, each with other real images."""
    steps_between: int = Field(default=5, ge=0)
    """Steps that a network is trained on all images so far between two matches."""
    steps_before: int = Field(default=50, ge=0)
    """Steps that a network is trained on the images of each stage before, and those before it."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the networks."""
    image_learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the images, whose pixels are from 0 to 1: about how far Adam moves each."""
    real_batch: int = Field(default=64, ge=1)
    """Real images of each class in a match."""
    augmentation: Literal["auto", "crop_flip", "crop", "none"] = "auto"
    """How real and synthetic images are augmented alike: shifted and perhaps mirrored, or only
    shifted; `auto` as in main training."""
    padding: int = Field(default=4, ge=0)
    """Pixels that an augmented image is shifted by at most; with `auto` its own."""
    seed: int = Field(default=0, ge=0)
    """Seed of the first images, the networks, and all draws."""

    @model_validator(mode="after")
    def _stages_are_equal(self) -> Self:
        if self.per_class % self.stages:
            raise ValueError(
                f"{self.per_class} images per class do not go into {self.stages} equal stages. "
                "Give a multiple of the stages."
            )
        return self

    @property
    def per_stage(self) -> int:
        """Images of each class in a stage."""
        return self.per_class // self.stages


@dataclass(frozen=True)
class RealExamples:
    """Ascending row numbers of images by class, int64, and each row's weight in a gradient."""

    dataset: Dataset
    ids: tuple[Tensor, ...]
    weights_N: Tensor

    @classmethod
    def of(cls, dataset: Dataset, subset: Subset | None, *, at_least: int) -> RealExamples:
        """Take all images, or a weighted subset's; DataError for too few images of a class."""
        if not isinstance(dataset.inputs, ImageSpec) or dataset.target.kind is not TargetKind.CLASS:
            raise DataError(
                f"{dataset.source} has {dataset.inputs} and {dataset.target.kind.words} targets; "
                "only images with one class each are distilled. Open such a set."
            )
        ids_K, weights_N = torch.arange(len(dataset)), torch.ones(len(dataset))
        if subset is not None:
            require_for(subset, dataset)
            ids_K = torch.from_numpy(subset.indices.copy())
            weights_N = torch.zeros(len(dataset))
            weights_N[ids_K] = torch.from_numpy(subset.weights.copy())
            ids_K = ids_K[weights_N[ids_K] > 0]
        labels_K = dataset.labels_N[ids_K]
        ids = tuple(ids_K[labels_K == label] for label in range(len(dataset.class_names)))
        for name, ids_M in zip(dataset.class_names, ids, strict=True):
            if len(ids_M) < at_least:
                raise DataError(
                    f"the class {name!r} of {dataset.source} has {len(ids_M)} images to distil "
                    f"{at_least} from. Ask for fewer per class, or give more images."
                )
        return cls(dataset, ids, weights_N)

    def draw(self, label: int, size: int, generator: torch.Generator) -> Tensor:
        """Draw up to `size` distinct row numbers of a class."""
        ids_M = self.ids[label]
        return ids_M[torch.randperm(len(ids_M), generator=generator)[:size]]

    def pixels(self, ids_B: Tensor) -> Tensor:
        """Return images as float32 in 0..1, B x C x H x W."""
        return self.dataset.images(ids_B).to(torch.float32) / 255


@dataclass(frozen=True)
class SyntheticSet(DistilledFile):
    """Images (uint8, by stage, then by class) of finished stages, counted from 0."""

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        manifest: dict[str, Any] | None = None,
    ) -> Self:
        """Return the set before the first stage, with images of C x H x W."""
        none = torch.empty(0, dtype=torch.int64)
        images_NCHW = torch.empty(0, *shape, dtype=torch.uint8)
        return cls(images_NCHW, none, none, class_names, manifest or {})

    @property
    def num_stages(self) -> int:
        """Number of finished stages."""
        return int(self.stages_N.max()) + 1 if len(self.stages_N) else 0

    @property
    def digest(self) -> str:
        """SHA-256 of the images, then the labels and the stages as little-endian int64."""
        parts = (bytes_of(part) for part in (self.images_NCHW, self.labels_N, self.stages_N))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def extended(self, images_NCHW: Tensor, labels_N: Tensor) -> Self:
        """Add the images of one stage."""
        stages_N = torch.full((len(labels_N),), self.num_stages)
        return replace(
            self,
            images_NCHW=torch.cat([self.images_NCHW, images_NCHW]),
            labels_N=torch.cat([self.labels_N, labels_N]),
            stages_N=torch.cat([self.stages_N, stages_N]),
        )

    def save(self, folder: Path) -> None:
        """Write `synthetic.safetensors`, and `manifest.json` and `sheet.png` for inspection."""
        tensors = {IMAGES: self.images_NCHW, LABELS: self.labels_N, STAGES: self.stages_N}
        metadata = {
            CLASS_NAMES: json.dumps(self.class_names),
            MANIFEST: json.dumps(self.manifest, sort_keys=True),
        }
        write_atomically(folder / FILE_NAME, pack(tensors, metadata))
        described = self.manifest | {"images": len(self.labels_N), "digest": self.digest}
        text = json.dumps(described, indent=2) + "\n"
        write_atomically(folder / "manifest.json", text.encode())
        write_atomically(folder / "sheet.png", self.sheet())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; DataError if the folder holds no such set."""
        return cls(**vars(read_distilled(folder)))

    def sheet(self) -> bytes:
        """Return a PNG with one row per class, its images by stage from left to right."""
        rows = [
            torch.cat(list(self.images_NCHW[self.labels_N == label]), dim=2)
            for label in range(len(self.class_names))
        ]
        content = io.BytesIO()
        to_image(torch.cat(rows, dim=1).numpy()).save(content, "PNG")
        return content.getvalue()


@dataclass(frozen=True)
class Networks:
    """All networks of a distillation, by number; `image` has the real data's mean and deviation."""

    model: str
    image: ImageFormat
    num_classes: int
    settings: Distillation
    device: torch.device
    allowed_modules: Collection[str] = ()

    def generator(self, purpose: str, index: int, stage: int) -> torch.Generator:
        return derive_generator(self.settings.seed, f"distillation-{purpose}-{stage}", index)

    def normalized(self, pixels_BCHW: Tensor) -> Tensor:
        """Normalize pixels in 0..1 on the device; differentiable."""
        mean, std = (
            torch.tensor(figures, device=self.device)[:, None, None]
            for figures in (self.image.mean, self.image.std)
        )
        return (pixels_BCHW.to(self.device) - mean) / std

    def augmented(self, images_BCHW: Tensor, generator: torch.Generator, *, alike: bool) -> Tensor:
        """Shift and perhaps mirror images: each differently, or all `alike`."""
        method = self.settings.augmentation
        padding, flip = self.settings.padding, method == "crop_flip"
        if method == "auto":
            padding, flip = mild_augmentation(self.image.shape)
        if method == "none" or not padding:
            return images_BCHW
        # As channels of one image, they share one crop.
        given = images_BCHW.flatten(0, 1)[None] if alike else images_BCHW
        moved = crop_flip(given, generator=generator, padding=padding, flip=flip)
        return moved.view_as(images_BCHW)

    def untrained(self, number: int) -> nn.Module:
        """Return a network with its initial weights; ConfigError for a model with batch norm."""
        network = build_model(
            self.model,
            num_classes=self.num_classes,
            inputs=ImageSpec(*self.image.shape),
            seed=derive_seed(self.settings.seed, "distillation-network", number),
            allowed_modules=self.allowed_modules,
        ).to(self.device)
        if any(isinstance(module, _BatchNorm) for module in network.modules()):
            raise ConfigError(
                f"{self.model} has batch norm: a class's gradient would depend on the batch. "
                "Distil with a model that normalizes each image alone, such as convnet; any model "
                "can be trained on the result."
            )
        return network

    def enter(self, stage: int, number: int, synthetic: SyntheticSet) -> nn.Module:
        """Return a network trained on each earlier stage in turn."""
        network = self.untrained(number)
        for before in range(stage):
            within_N = synthetic.stages_N <= before
            pixels_NCHW = synthetic.images_NCHW[within_N].to(self.device, torch.float32) / 255
            labels_N = synthetic.labels_N[within_N].to(self.device)
            generator, steps = self.generator("steps", number, before), self.settings.steps_before
            self.train(network, pixels_NCHW, labels_N, steps, generator)
        return network

    def train(
        self,
        network: nn.Module,
        pixels_NCHW: Tensor,
        labels_N: Tensor,
        num_steps: int,
        generator: torch.Generator,
    ) -> None:
        """Train in place by SGD on images with pixels in 0..1."""
        rate = self.settings.learning_rate
        optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=_MOMENTUM)
        for _ in range(num_steps):
            rows_B = torch.randperm(len(labels_N), generator=generator)[:_BATCH_SIZE]
            rows_B = rows_B.to(self.device)
            pixels_BCHW = self.augmented(pixels_NCHW[rows_B], generator, alike=False)
            logits_BC = network(self.normalized(pixels_BCHW))
            loss = functional.cross_entropy(logits_BC, labels_N[rows_B])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()


def gradients(
    model: nn.Module,
    inputs_B: Tensor,
    label: int,
    weights_B: Tensor,
    *,
    differentiable: bool = False,
) -> tuple[Tensor, ...]:
    """Return a class's gradient of the weighted mean cross-entropy, for all weight matrices."""
    labels_B = torch.full((len(inputs_B),), label, device=inputs_B.device)
    weights_B = weights_B.to(inputs_B.device)
    losses_B = functional.cross_entropy(model(inputs_B), labels_B, reduction="none")
    loss = (losses_B * weights_B).sum() / weights_B.sum()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return torch.autograd.grad(loss, matrices, create_graph=differentiable)


def distance(real: Sequence[Tensor], synthetic: Sequence[Tensor]) -> Tensor:
    """Return the distance of two gradients, 0-d: the sum of 1 - cos over layers and their R rows.

    A row of zeros counts 1. Biases and normalization layers do not count.
    """
    similarities = [
        functional.cosine_similarity(expected.flatten(1), other.flatten(1))
        for expected, other in zip(real, synthetic, strict=True)
    ]
    return torch.cat([1 - rows_R for rows_R in similarities]).sum()


def make_stage(
    synthetic: SyntheticSet,
    real: RealExamples,
    networks: Networks,
    report: Callable[[str], object],
) -> SyntheticSet:
    """Return the set with one more stage, distilled from `real`; `report` as in `distill`."""
    settings, stage, device = networks.settings, synthetic.num_stages, networks.device
    ids_S = [
        real.draw(label, settings.per_stage, networks.generator("first-images", label, stage))
        for label in range(networks.num_classes)
    ]
    labels_N = torch.arange(networks.num_classes).repeat_interleave(settings.per_stage)
    every_N = torch.cat([synthetic.labels_N, labels_N]).to(device)
    earlier_NCHW = synthetic.images_NCHW.to(device, torch.float32) / 255

    pixels_NCHW = real.pixels(torch.cat(ids_S)).to(device).requires_grad_()
    optimizer = torch.optim.Adam([pixels_NCHW], lr=settings.image_learning_rate)
    done, num_matches = 0, settings.networks * settings.matches
    for number in range(settings.networks):
        network = networks.enter(stage, number, synthetic)
        training = networks.generator("inner-steps", number, stage)
        for _ in range(settings.matches):
            draws = networks.generator("matches", done, stage)
            optimizer.zero_grad()
            apart = _match(networks, real, earlier_NCHW, every_N, network, pixels_NCHW, draws)
            optimizer.step()
            with torch.no_grad():
                pixels_NCHW.clamp_(0, 1)
            done += 1
            where = f"stage {stage + 1} of {settings.stages}"
            report(f"{where}: match {done} of {num_matches}, distance {apart:.1f}")
            every_NCHW = torch.cat([earlier_NCHW, pixels_NCHW.detach()])
            networks.train(network, every_NCHW, every_N, settings.steps_between, training)
    images_NCHW = (pixels_NCHW.detach() * 255).round().to(torch.uint8)
    return synthetic.extended(images_NCHW.cpu(), labels_N)


def _match(
    networks: Networks,
    real: RealExamples,
    earlier_NCHW: Tensor,
    every_N: Tensor,
    network: nn.Module,
    pixels_NCHW: Tensor,
    generator: torch.Generator,
) -> float:
    """Return the distance over all classes; adds its gradient to that of the stage's pixels."""
    total, found_NCHW = 0.0, torch.zeros_like(pixels_NCHW)
    for label in range(networks.num_classes):
        ids_B = real.draw(label, networks.settings.real_batch, generator)
        # Both sides have the same shift and mirroring.
        again = torch.Generator().set_state(generator.get_state())
        pixels_BCHW = networks.augmented(real.pixels(ids_B), generator, alike=True)
        real_gradients = gradients(
            network, networks.normalized(pixels_BCHW), label, real.weights_N[ids_B]
        )
        own_BCHW = torch.cat([earlier_NCHW, pixels_NCHW])[every_N == label]
        own_BCHW = networks.normalized(networks.augmented(own_BCHW, again, alike=True))
        own_gradients = gradients(
            network, own_BCHW, label, torch.ones(len(own_BCHW)), differentiable=True
        )
        apart = distance(real_gradients, own_gradients)
        # The gradient by the images only, not by the network's weights.
        found_NCHW += torch.autograd.grad(apart, [pixels_NCHW])[0]
        total += apart.item()
    pixels_NCHW.grad = found_NCHW
    return total


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
    report: Callable[[str], object] = lambda _: None,
) -> SyntheticSet:
    """Make synthetic images; continues after the last complete stage in the folder.

    The same data, settings, kind of device and number of threads give the same bytes, however often
    it was interrupted.

    Args:
        data: images with one class each.
        model: a name such as "convnet", of a model without batch norm.
        settings: number of images, and optimizer settings.
        out: a folder, created if missing; the set is saved after every stage.
        subset: the distilled examples; all of `data` where None.
        later: the examples of stages after the first, such as the hardest ones.
        device: "auto", "cpu", "cuda" or "cuda:N".
        allowed_modules: modules that `model` may be imported from.
        report: called with a line of progress.

    Raises:
        DataError: no images or classes, too few images of a class, or other files in the folder.
        SubsetError: a subset is another data set's.
        ConfigError: batch norm, another distillation in the folder, or no such device.
        OSError: the folder cannot be written to.
    """
    place = resolve_device(device)
    sources = [
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

    with computation():
        networks.untrained(0)  # refuses an unsuitable model before anything is written
        synthetic = _begun(out, data, image, identity)
        for stage in range(synthetic.num_stages, settings.stages):
            began, real = monotonic(), sources[min(stage, 1)]
            # Layers such as dropout draw the same values after a restart.
            layers = derive_seed(settings.seed, "distillation-layers", stage)
            with seeded_generators(layers, place):
                made = make_stage(synthetic, real, networks, report)
            noted = {"real_images": sum(map(len, real.ids)), "seconds": monotonic() - began}
            stages = [*synthetic.manifest["stages"], noted]
            synthetic = replace(made, manifest={**synthetic.manifest, "stages": stages})
            synthetic.save(out)
    return synthetic


def _begun(out: Path, data: Dataset, image: ImageFormat, identity: dict[str, Any]) -> SyntheticSet:
    if not (out / FILE_NAME).is_file():
        out.mkdir(parents=True, exist_ok=True)
        figures = {"source": data.source, "mean": image.mean, "std": image.std}
        manifest = {"identity": identity, **figures, "stages": []}
        return SyntheticSet.empty(image.shape, data.class_names, manifest)
    stored = SyntheticSet.load(out)
    if changed := differences(stored.manifest.get("identity", {}), identity):
        raise ConfigError(
            f"{out} holds another distillation: {changed}. Name another folder, or remove it."
        )
    return stored
