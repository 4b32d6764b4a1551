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
    ImageSize,
    Json,
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
    every: Annotated[
        int,
        typer.Option(
            min=0,
            help="Epochs after which subsets are chosen again, as --every of 'lipt train', and "
            "random is re-drawn beside them. 0: never.",
        ),
    ] = 0
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds of the whole pipeline.")] = 3
    training_seeds: Annotated[
        int, typer.Option(min=1, help="How many trainings for each seed of the pipeline.")
    ] = 1
    proxy: Proxy = None
    run_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--run-set",
            metavar="NAME=VALUE",
            help="A setting of the runs, as --set of 'lipt run start'.",
        ),
    ] = None

    def plan(self, model: str, recipe: Recipe) -> Plan:
        """The comparison that was asked for; a mistake in it is a usage error."""
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
                every=self.every,
                training_seeds=self.training_seeds,
                proxy=self.proxy,
            )


@grouped
def compare(
    *,
    data: Annotated[str, typer.Option(help="The coordinator's data, opened here to train on.")],
    test: Annotated[str, typer.Option(help="The data that accuracy is measured on.")],
    image_size: ImageSize = None,
    model: Annotated[str, typer.Option(help="resnet8, resnet18, torchvision:NAME, ...")],
    design: Design,
    target: Annotated[
        float | None,
        typer.Option(
            help="The test accuracy, in (0, 1), that trainings are timed to. Without it: what "
            "the fixed random subset of the fraction ends with."
        ),
    ] = None,
    training: Training,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file of trials; goes on after those that it holds."),
    ] = Path("comparison.jsonl"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    device: Annotated[
        str, typer.Option(help="Where to train: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    allow_module: AllowModule = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Compare strategies with what people do instead, by training for equally many steps."""
    if target is not None and not 0 < target < 1:
        raise typer.BadParameter(f"{target} is not in (0, 1), e.g. 0.9", param_hint="--target")
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.common.imports import import_extra
    from lipt.trainer.cli.display.output import open_talking
    from lipt.trainer.cli.display.training_progress import TrainingProgress
    from lipt.trainer.comparison import table
    from lipt.trainer.comparison.compare import compare as run_comparison
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.verdict import answers, verdict
    from lipt.trainer.reselection.reselection import ReselectionWarning

    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt compare")
    plan = design.plan(model, training.recipe())
    require_replaceable(out)
    modules = modules_of(allow_module, data, test, model)
    opened = partial(open_talking, image_size=image_size, modules=modules)
    train_data, test_data = opened(data), opened(test)
    with (
        coordinator.connect() as client,
        TrainingProgress() as progress,
        progress.saying(ReselectionWarning),
    ):
        trials = run_comparison(
            client,
            plan,
            train_data,
            test_data,
            out=out,
            device=device,
            allowed_modules=modules,
            say=progress.say,
            on_step=progress.on_step,
        )
    rows = outcomes(trials, target)
    found = {
        "outcomes": rows,
        "answers": answers(rows),
        "verdict": verdict(rows),
        "trials": trials,
    }
    lines = table.markdown(rows) if markdown else table.plain(rows)
    print_result(found, [*lines, "", *verdict(rows).splitlines()], as_json=json)


def _fractions(text: str) -> tuple[float, ...]:
    try:
        fractions = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not numbers with commas, e.g. 0.05,0.1") from None
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise typer.BadParameter(f"{text!r}: a fraction is in (0, 1], e.g. 0.1")
    return fractions
