"""`lipt distill`: a few synthetic images per class that are trained on in place of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typer import BadParameter, Option

from lipt.trainer.cli import options as shared
from lipt.trainer.cli.display.output import open_talking, print_result, run_talking
from lipt.trainer.writing.formatting import format_percent

# Few images are learnt in few steps; --train-set has the last word.
_TRAINING = {"steps": 300, "learning_rate": 0.01}


@dataclass(frozen=True)
class Making:
    """How the images are made."""

    per_class: int = Option(..., help="How many synthetic images of each class.")
    stages: int = Option(1, help="Stages that the images are made in, equally many in each.")
    seed: int = Option(0, help="Seed of all draws.")
    settings: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="A setting of the distillation: discard=0.3."
    )


@dataclass(frozen=True)
class Measuring:
    """How it is measured what the images are worth."""

    test: str | None = Option(None, help="Data to compare the images with random ones on.")
    seeds: int = Option(3, min=1, help="How many trainings of each, with --test.")
    train_model: str | None = Option(None, help="The model that is trained then, if not --model.")
    train_settings: list[str] | None = Option(
        None, "--train-set", metavar="NAME=VALUE", help="A setting of that training's recipe."
    )


@shared.grouped
def distill(
    *,
    data: str = Option(..., help="The images to distil."),
    making: Making,
    model: str = Option("convnet", help="Makes the images; a model without batch norm."),
    out: Path = Option(..., "--out", "-o", help="A folder; goes on after its stages."),
    subset: Path | None = Option(None, help="A file of 'lipt subset get' to distil; else all."),
    later: Path | None = Option(None, help="Another one, of harder examples, for later stages."),
    measuring: Measuring,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Experimental: distil images into a few synthetic ones, progressively."""
    if later is not None and making.stages == 1:
        raise BadParameter("--later is for stages after the first: give --stages, too.")
    shared.require_folder(out)
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.trainer.distillation import Distillation
    from lipt.trainer.distillation import distill as distil
    from lipt.trainer.distillation.synthetic import evaluate
    from lipt.trainer.main_training import Recipe
    from lipt.trainer.main_training.examples import require_comparable
    from lipt.trainer.subsets.subset import Subset

    given = {"per_class": making.per_class, "stages": making.stages, "seed": making.seed}
    wanted = shared.validated(Distillation, shared.collect_overrides(given, making.settings))
    as_made = {"augmentation": wanted.augmentation, "padding": wanted.padding}
    settings = shared.collect_overrides({}, measuring.train_settings)
    recipe = shared.validated(Recipe, {**_TRAINING, **as_made, **settings})
    first, harder = (None if file is None else Subset.load(file) for file in (subset, later))
    modules = shared.modules_of(allow_module, data, measuring.test, model, measuring.train_model)
    opened = partial(open_talking, image_size=image_size, modules=modules)
    real, held_out = opened(data), None if measuring.test is None else opened(measuring.test)
    if held_out is not None:  # rather now than after hours
        require_comparable(held_out, real)
    common: dict[str, Any] = {"device": device, "allowed_modules": modules}
    make = partial(distil, real, model, wanted, out, subset=first, later=harder, **common)
    synthetic = run_talking(lambda tell: make(tell=tell))
    outcomes = []
    if held_out is not None:
        trained = measuring.train_model or model
        measure = partial(evaluate, synthetic, real, held_out, trained, recipe, **common)
        seeds = range(measuring.seeds)
        outcomes = run_talking(lambda tell: measure(seeds=seeds, chosen={}, tell=tell))
    num_images = len(synthetic.labels_N)
    made = f"{num_images} images of {len(synthetic.class_names)} classes"
    lines = [
        f"{made} in {synthetic.num_stages} stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
        *(_line(one.name, one.num_images, one.accuracies) for one in outcomes),
    ]
    shown = {
        "folder": out,
        "images": num_images,
        "digest": synthetic.digest,
        "stages": synthetic.manifest["stages"],
        "outcomes": outcomes,
    }
    print_result(shown, lines, as_json=json)


def _line(name: str, num_images: int, accuracies: tuple[float, ...]) -> str:
    from statistics import fmean, stdev

    spread = 100 * stdev(accuracies) if len(accuracies) > 1 else 0.0
    accuracy = f"{format_percent(fmean(accuracies))} +- {spread:.1f}"
    return f"{name}, {num_images} images: {accuracy} on the test set ({len(accuracies)} seeds)"
