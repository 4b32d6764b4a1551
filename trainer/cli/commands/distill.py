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

if TYPE_CHECKING:
    from lipt.trainer.distillation import Distillation


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
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the distillation, e.g. matches=20.",
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
    from lipt.trainer.subsets.subset import Subset

    wanted = making.distillation()
    first, harder = (None if file is None else Subset.load(file) for file in (subset, later))
    modules = modules_of(allow_module, data, model)
    real = open_talking(data, image_size=image_size, modules=modules)
    where: dict[str, Any] = {"device": device, "allowed_modules": modules}
    make = partial(distil, real, model, wanted, out, subset=first, later=harder, **where)
    synthetic = run_talking(lambda tell: make(tell=tell))
    num_images = len(synthetic.labels_N)
    images = f"{num_images} images of {len(synthetic.class_names)} classes"
    lines = [
        f"{images} in {synthetic.num_stages} stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
    ]
    shown = {
        "folder": out,
        "images": num_images,
        "digest": synthetic.digest,
        "stages": synthetic.manifest["stages"],
    }
    print_result(shown, lines, as_json=json)


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
