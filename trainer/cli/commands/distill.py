"""`lipt distill`: a few synthetic images per class that are trained on in place of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import (
    AllowModule,
    Device,
    ImageSize,
    Json,
    grouped,
    modules_of,
)
from lipt.trainer.writing.formatting import format_percent

if TYPE_CHECKING:
    from lipt.trainer.distillation import Distillation
    from lipt.trainer.distillation.synthetic import Outcome, SyntheticSet
    from lipt.trainer.main_training import Recipe

# Few images are learnt in few steps; --train-set has the last word.
_TRAINING = {"steps": 300, "learning_rate": 0.01}


@dataclass(frozen=True)
class Making:
    """How the images are made."""

    per_class: Annotated[int, typer.Option(help="How many synthetic images of each class.")]
    stages: Annotated[
        int, typer.Option(help="Stages that the images are made in, equally many in each.")
    ] = 1
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the distillation, e.g. discard=0.3."
        ),
    ] = None

    def distillation(self) -> Distillation:
        """The settings; a mistake in them is a usage error."""
        from lipt.common.config.values import validate
        from lipt.trainer.cli.overrides import collect_overrides, refusing_as_usage
        from lipt.trainer.distillation import Distillation

        with refusing_as_usage():
            given = {"per_class": self.per_class, "stages": self.stages, "seed": self.seed}
            return validate(Distillation, collect_overrides(given, self.settings or [], None))


@dataclass(frozen=True)
class Measuring:
    """How it is measured what the images are worth."""

    test: Annotated[
        str | None,
        typer.Option(help="Data to measure on: what the images are worth beside random ones."),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, help="How many trainings of each, with --test.")] = 3
    train_model: Annotated[
        str | None, typer.Option(help="The model that is trained then, if not --model.")
    ] = None
    train_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--train-set", metavar="NAME=VALUE", help="A setting of that training's recipe."
        ),
    ] = None

    def recipe(self, wanted: Distillation) -> Recipe:
        """The recipe of the training; a mistake in it is a usage error."""
        from lipt.common.config.values import validate
        from lipt.trainer.cli.overrides import collect_overrides, refusing_as_usage
        from lipt.trainer.main_training import Recipe

        with refusing_as_usage():
            as_made = {"augmentation": wanted.augmentation, "padding": wanted.padding}
            training = collect_overrides({}, self.train_settings or [], None)
            return validate(Recipe, {**_TRAINING, **as_made, **training})


@grouped
def distill(
    *,
    data: Annotated[str, typer.Option(help="The images to distil.")],
    making: Making,
    model: Annotated[
        str, typer.Option(help="What the images are made with; a model without batch norm.")
    ] = "convnet",
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="A folder; goes on after the stages that it holds."),
    ],
    subset: Annotated[
        Path | None,
        typer.Option(help="A file of 'lipt subset get' to distil; without it, all examples."),
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option(
            help="Another such file, which stages after the first distil: harder examples."
        ),
    ] = None,
    measuring: Measuring,
    image_size: ImageSize = None,
    device: Device = "auto",
    allow_module: AllowModule = None,
    json: Json = False,
) -> None:
    """Experimental: distil images into a few synthetic ones, progressively."""
    _require(out, later, making)
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.trainer.cli.display.output import open_talking, run_talking
    from lipt.trainer.distillation import distill as distil
    from lipt.trainer.distillation.synthetic import evaluate
    from lipt.trainer.main_training.examples import require_comparable
    from lipt.trainer.subsets.subset import Subset

    wanted = making.distillation()
    recipe = measuring.recipe(wanted)
    first, harder = (None if file is None else Subset.load(file) for file in (subset, later))
    modules = modules_of(allow_module, data, measuring.test, model, measuring.train_model)
    opened = partial(open_talking, image_size=image_size, modules=modules)
    real, held_out = opened(data), None if measuring.test is None else opened(measuring.test)
    if held_out is not None:  # rather now than after hours
        require_comparable(held_out, real)
    common: dict[str, Any] = {"device": device, "allowed_modules": modules}
    make = partial(distil, real, model, wanted, out, subset=first, later=harder, **common)
    synthetic = run_talking(lambda tell: make(tell=tell))
    outcomes: list[Outcome] = []
    if held_out is not None:
        trained = measuring.train_model or model
        measure = partial(evaluate, synthetic, real, held_out, trained, recipe, **common)
        seeds = range(measuring.seeds)
        outcomes = run_talking(lambda tell: measure(seeds=seeds, tell=tell))
    _report(synthetic, outcomes, out, json=json)


def _require(out: Path, later: Path | None, making: Making) -> None:
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file. Name a folder.", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(
            f"{out.parent} is not a directory. Make it first.", param_hint="--out"
        )
    if later is not None and making.stages == 1:
        raise typer.BadParameter(
            "It is what stages after the first distil: give --stages, too.", param_hint="--later"
        )


def _report(synthetic: SyntheticSet, outcomes: list[Outcome], out: Path, *, json: bool) -> None:
    from statistics import fmean, stdev

    num_images = len(synthetic.labels_N)
    made = f"{num_images} images of {len(synthetic.class_names)} classes"
    lines = [
        f"{made} in {synthetic.num_stages} stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
    ]
    for outcome in outcomes:
        found = outcome.accuracies
        spread = 100 * stdev(found) if len(found) > 1 else 0.0
        lines.append(
            f"{outcome.name}, {outcome.num_images} images: {format_percent(fmean(found))} +- "
            f"{spread:.1f} on the test set ({len(found)} seeds)"
        )
    shown = {
        "folder": out,
        "images": num_images,
        "digest": synthetic.digest,
        "stages": synthetic.manifest["stages"],
        "outcomes": outcomes,
    }
    print_result(shown, lines, as_json=json)
