"""`lipt distill`: a few synthetic images per class that are trained on in place of the data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from typer import BadParameter, Option

from lipt.trainer.cli import options as shared
from lipt.trainer.cli.display.output import open_with_progress, print_result, run_with_progress


def distill(
    *,
    data: str = Option(..., help="The images to distil."),
    per_class: int = Option(..., help="How many synthetic images of each class."),
    stages: int = Option(1, help="Stages that the images are made in, equally many in each."),
    seed: int = Option(0, help="Seed of all draws."),
    settings: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="A setting of the distillation: matches=20."
    ),
    model: str = Option("convnet", help="Makes the images; a model without batch norm."),
    out: Path = Option(..., "--out", "-o", help="A folder; an existing one is continued."),
    subset: Path | None = Option(None, help="A file of 'lipt subset get' to distil; else all."),
    later: Path | None = Option(None, help="Another one, of harder examples, for later stages."),
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Experimental: distil images into a few synthetic ones, progressively."""
    if later is not None and stages == 1:
        raise BadParameter("--later is for stages after the first: give --stages, too.")
    shared.require_place(out, folder=True)
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.trainer.distillation import Distillation
    from lipt.trainer.distillation import distill as distil
    from lipt.trainer.subsets.subset import Subset

    given = {"per_class": per_class, "stages": stages, "seed": seed}
    wanted = shared.validated(Distillation, shared.collect_overrides(given, settings))
    first, harder = (None if file is None else Subset.load(file) for file in (subset, later))
    modules = shared.modules_of(allow_module, data, model)
    real = open_with_progress(data, image_size=image_size, modules=modules)
    where: dict[str, Any] = {"device": device, "allowed_modules": modules}
    make = partial(distil, real, model, wanted, out, subset=first, later=harder, **where)
    synthetic = run_with_progress(lambda report: make(report=report))
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
