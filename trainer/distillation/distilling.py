"""`distill`: a data set, a model and settings in, a folder with synthetic images out, by stages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from lipt.common.data import Dataset, input_format
from lipt.common.data.sources.distilled import FILE_NAME
from lipt.common.determinism import derive_seed, pinned_kernels, seeded_generators
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.process.devices import resolve_device
from lipt.trainer.distillation.network import Networks
from lipt.trainer.distillation.real import RealExamples
from lipt.trainer.distillation.settings import Distillation
from lipt.trainer.distillation.stage import make_stage
from lipt.trainer.distillation.synthetic import SyntheticSet
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.writing.differences import differences

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
