"""`lipt compare`: compares strategies' subsets with random subsets and all data, at equal steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from typer import BadParameter, Exit, Option

from lipt.cli import options as shared
from lipt.cli.output import open_with_progress, print_result, training_progress

# Status without a verdict; 1 and 2 are errors.
_NOTHING_LEARNED = 3


@dataclass(frozen=True)
class Design:
    strategies: str = Option(..., help="Names of strategies, with commas between them.")
    fractions: str = Option("0.1", help="Shares of the data set to keep, with commas.")
    baselines: str = Option(
        "uniform,uniform_per_class,resampled,everything",
        help="Baselines: fixed random subsets (uniform, uniform_per_class), a random "
        "one resampled every epoch (`resampled`), all of the data (everything).",
    )
    seeds: int = Option(3, min=1, help="How many seeds of the whole pipeline.")
    proxy: shared.Proxy = None
    soft_labels: bool = Option(
        False, "--soft-labels", help="Train all but resampled random with soft labels, too."
    )
    run_settings: list[str] | None = Option(
        None,
        "--run-set",
        metavar="NAME=VALUE",
        help="A setting of the runs, as --set of run start.",
    )


@shared.grouped
def compare(
    *,
    data: str = Option(..., help="The coordinator's data, opened here to train on."),
    test: str = Option(..., help="The data that accuracy is measured on."),
    image_size: shared.ImageSize = None,
    model: shared.Model,
    design: Design,
    training: shared.TrainingFlags,
    out: Path = Option(
        "comparison.jsonl", "--out", "-o", help="The file of trials; an existing one is continued."
    ),
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Compare strategies with random subsets and all of the data.

    All train for equally many steps.
    Ends with status 3 if a baseline learned nothing: then there is no verdict.
    """
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.common.imports import import_extra
    from lipt.trainer.comparison import compare as comparison
    from lipt.trainer.comparison.outcomes import answers, outcomes, text_tables, verdict
    from lipt.trainer.comparison.trial import ComparisonPlan
    from lipt.trainer.main_training.steps import require_fingerprint

    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt compare")
    plan = ComparisonPlan(
        strategies=shared.parse_names(design.strategies),
        fractions=_fractions(design.fractions),
        seeds=tuple(range(design.seeds)),
        model=model,
        recipe=training.recipe(),
        run_overrides=shared.collect_overrides({}, design.run_settings),
        baselines=shared.parse_names(design.baselines),
        proxy=design.proxy,
        soft_labels=design.soft_labels,
    )
    shared.require_replaceable(out)
    modules = shared.modules_of(allow_module, data, test, model)
    opened = partial(open_with_progress, image_size=image_size, modules=modules)
    train_data, test_data = opened(data), opened(test)
    with training_progress() as progress, coordinator.connect() as client:
        served = client.info().dataset
        require_fingerprint("the coordinator", served and served.fingerprint, train_data)
        trials = comparison.compare(
            client.strategies(),
            plan,
            train_data,
            test_data,
            pretrain=partial(comparison.run_of, client, plan),
            choose=lambda run, strategy, **asked: client.subset(run.run_id, strategy, **asked),
            out=out,
            device=device,
            allowed_modules=modules,
            print_line=progress.print_line,
            on_step=progress.on_step,
        )
    rows = outcomes(trials)
    said, answered = verdict(rows), answers(rows)
    found = {"outcomes": rows, "answers": answered, "verdict": said, "trials": trials}
    print_result(found, [*text_tables(rows), "", *said.splitlines()], as_json=json)
    if not all(one.learned for one in answered):
        raise Exit(_NOTHING_LEARNED)


def _fractions(text: str) -> tuple[float, ...]:
    try:
        fractions = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise BadParameter(f"{text!r} is not numbers with commas, e.g. 0.05,0.1") from None
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise BadParameter(f"{text!r}: a fraction is in (0, 1], e.g. 0.1")
    return fractions
