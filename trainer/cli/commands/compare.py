"""`lipt compare`: do a strategy's subsets beat what people would do instead, and at what cost?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import (
    AllowModule,
    Coordinator,
    Device,
    ImageSize,
    Json,
    Model,
    Proxy,
    Training,
    grouped,
    modules_of,
    require_replaceable,
)

if TYPE_CHECKING:
    from lipt.trainer.comparison.trial import Plan
    from lipt.trainer.main_training import Recipe


@dataclass(frozen=True)
class Design:
    """What is compared, and how often."""

    strategies: Annotated[str, typer.Option(help="Names of strategies, with commas between them.")]
    fractions: Annotated[str, typer.Option(help="Shares of the data set to keep, with commas.")] = (
        "0.1"
    )
    baselines: Annotated[
        str,
        typer.Option(
            help="What to compare with: fixed random subsets (uniform, uniform_per_class), a "
            "random one re-drawn every epoch (redrawn), all of the data (everything)."
        ),
    ] = "uniform,uniform_per_class,redrawn,everything"
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds of the whole pipeline.")] = 3
    proxy: Proxy = None
    soft_labels: Annotated[
        bool, typer.Option("--soft-labels", help="Train every subset with soft labels, too.")
    ] = False
    run_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--run-set",
            metavar="NAME=VALUE",
            help="A setting of the runs, as --set of 'lipt run start'.",
        ),
    ] = None

    def plan(self, model: str, recipe: Recipe) -> Plan:
        """The comparison; a mistake in it is a usage error."""
        from lipt.trainer.cli.overrides import collect_overrides, parse_names, refusing_as_usage
        from lipt.trainer.comparison.trial import Plan

        with refusing_as_usage():
            return Plan(
                strategies=parse_names(self.strategies),
                fractions=_fractions(self.fractions),
                seeds=tuple(range(self.seeds)),
                model=model,
                recipe=recipe,
                run_overrides=collect_overrides({}, self.run_settings or [], None),
                baselines=parse_names(self.baselines),
                proxy=self.proxy,
                soft_labels=self.soft_labels,
            )


@grouped
def compare(
    *,
    data: Annotated[str, typer.Option(help="The coordinator's data, opened here to train on.")],
    test: Annotated[str, typer.Option(help="The data that accuracy is measured on.")],
    image_size: ImageSize = None,
    model: Model,
    design: Design,
    training: Training,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file of trials; goes on after those that it holds."),
    ] = Path("comparison.jsonl"),
    device: Device = "auto",
    allow_module: AllowModule = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Compare strategies with what people do instead, by training for equally many steps."""
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.common.imports import import_extra
    from lipt.trainer.cli.display.output import open_talking
    from lipt.trainer.cli.display.progress import TrainingProgress
    from lipt.trainer.comparison import compare as comparison
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.table import answers, plain, verdict

    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt compare")
    plan = design.plan(model, training.recipe())
    require_replaceable(out)
    modules = modules_of(allow_module, data, test, model)
    opened = partial(open_talking, image_size=image_size, modules=modules)
    train_data, test_data = opened(data), opened(test)
    progress = TrainingProgress()
    with coordinator.connect() as client:
        trials = comparison.compare(
            client,
            plan,
            train_data,
            test_data,
            pretrain=partial(comparison.run_of, client, plan),
            out=out,
            device=device,
            allowed_modules=modules,
            say=progress.say,
            on_step=progress.on_step,
        )
    rows = outcomes(trials)
    said = verdict(rows)
    found = {"outcomes": rows, "answers": answers(rows), "verdict": said, "trials": trials}
    print_result(found, [*plain(rows), "", *said.splitlines()], as_json=json)


def _fractions(text: str) -> tuple[float, ...]:
    try:
        fractions = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not numbers with commas, e.g. 0.05,0.1") from None
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise typer.BadParameter(f"{text!r}: a fraction is in (0, 1], e.g. 0.1")
    return fractions
