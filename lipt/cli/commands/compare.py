"""`lipt compare`: compares strategies' subsets with random subsets and all data, at equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter, Exit, Option

from lipt.cli import options as shared
from lipt.cli.output import open_with_progress, print_result, training_progress

if TYPE_CHECKING:
    from lipt.trainer.comparison.trial import Trial

# Status without a verdict; 1 and 2 are errors.
_NOTHING_LEARNED = 3


@dataclass(frozen=True)
class Design:
    strategies: str = Option(..., help="Names of strategies, with commas between them.")
    fractions: str = Option("0.1", help="Shares of the data set to keep, with commas.")
    baselines: str | None = Option(
        None,
        help="Baselines: fixed random subsets (uniform, uniform_per_class), a random "
        "one resampled every epoch (`resampled`), all of the data (everything). For texts: no "
        "training (untrained), uniform and everything. Default: all of them.",
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


@dataclass(frozen=True)
class ComparedData:
    data: str = Option(..., help="The data to train on; a coordinator's, opened here.")
    test: str = Option(..., help="The data that accuracy is measured on.")
    target_data: list[str] | None = Option(
        None,
        help="Texts of what you care about, and --test has others: compare language models, in "
        "this process. Repeat it for several parts, which take turns.",
    )
    model: str = Option(..., help="resnet8, resnet18, torchvision:NAME, text:causal, ...")
    image_size: shared.ImageSize = None
    device: shared.Device = "auto"
    allow_module: shared.AllowModule = None

    @property
    def modules(self) -> tuple[str, ...]:
        named = (self.data, self.test, self.model, *(self.target_data or ()))
        return shared.modules_of(self.allow_module, *named)


@shared.grouped
def compare(
    *,
    given: ComparedData,
    design: Design,
    training: shared.TrainingFlags,
    out: Path = Option(
        "comparison.jsonl", "--out", "-o", help="The file of trials; an existing one is continued."
    ),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Compare strategies with random subsets and all of the data.

    All train for equally many steps. With --target-data no coordinator is needed.
    Ends with status 3 if a baseline learned nothing: then there is no verdict.
    """
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.common.imports import import_extra
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.verdict import answers, text_tables, verdict

    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt compare")
    shared.require_replaceable(out)
    trials = (
        _of_coordinator(given, design, training, out, coordinator)
        if given.target_data is None
        else _of_texts(given, design, training, out)
    )
    rows = outcomes(trials)
    said, answered = verdict(rows), answers(rows)
    result = {"outcomes": rows, "answers": answered, "verdict": said, "trials": trials}
    print_result(result, [*text_tables(rows), "", *said.splitlines()], as_json=json)
    if not all(answer.learned for answer in answered):
        raise Exit(_NOTHING_LEARNED)


def _of_texts(
    given: ComparedData, design: Design, training: shared.TrainingFlags, out: Path
) -> Sequence[Trial]:
    """The trials of language models for a target, in this process."""
    from lipt.calls import compare as compare_here

    return compare_here(
        given.data,
        given.test,
        given.model,
        target_data={name: name for name in given.target_data or ()},
        strategies=shared.parse_names(design.strategies),
        fractions=_fractions(design.fractions),
        baselines=design.baselines and shared.parse_names(design.baselines),
        seeds=design.seeds,
        recipe=training.settings_given(),
        proxy=design.proxy,
        soft_labels=design.soft_labels,
        run=shared.collect_overrides({}, design.run_settings),
        image_size=given.image_size,
        device=given.device,
        allow_modules=given.modules,
        out=out,
    ).trials


def _of_coordinator(
    given: ComparedData,
    design: Design,
    training: shared.TrainingFlags,
    out: Path,
    coordinator: shared.Coordinator,
) -> Sequence[Trial]:
    """The trials on subsets of a coordinator's runs."""
    from lipt.trainer.comparison import compare as comparison
    from lipt.trainer.comparison.trial import BASELINES, ComparisonPlan
    from lipt.trainer.main_training.steps import require_fingerprint

    plan = ComparisonPlan(
        strategies=shared.parse_names(design.strategies),
        fractions=_fractions(design.fractions),
        seeds=tuple(range(design.seeds)),
        model=given.model,
        recipe=training.recipe(),
        run_overrides=shared.collect_overrides({}, design.run_settings),
        baselines=BASELINES if design.baselines is None else shared.parse_names(design.baselines),
        proxy=design.proxy,
        soft_labels=design.soft_labels,
    )
    opened = partial(open_with_progress, image_size=given.image_size, modules=given.modules)
    train_data, test_data = opened(given.data), opened(given.test)
    with training_progress() as progress, coordinator.connect() as client:
        served = client.info().dataset
        require_fingerprint("the coordinator", served and served.fingerprint, train_data)
        return comparison.compare(
            client.strategies(),
            plan,
            train_data,
            test_data,
            pretrain=partial(comparison.run_of, client, plan),
            choose=lambda run, strategy, **asked: client.subset(run.run_id, strategy, **asked),
            out=out,
            device=given.device,
            allowed_modules=given.modules,
            print_line=progress.print_line,
            on_step=progress.on_step,
        )


def _fractions(text: str) -> tuple[float, ...]:
    try:
        fractions = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise BadParameter(f"{text!r} is not numbers with commas, e.g. 0.05,0.1") from None
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise BadParameter(f"{text!r}: a fraction is in (0, 1], e.g. 0.1")
    return fractions
