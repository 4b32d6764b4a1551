"""`lipt plan`: what a run and a subset cost, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from lipt.cli import options as shared
from lipt.cli.commands.subset import StrategyFlags
from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig

app = typer.Typer(rich_markup_mode=None)
_LEARNERS = option_help(RunConfig, "learners.num_learners", show_default=False)


@app.command()
@shared.grouped
def plan(
    *,
    data: Annotated[str, typer.Option(help="The data, as lipt-coordinator takes it.")],
    model: shared.OwnModel = None,
    choice: StrategyFlags,
    workers: Annotated[
        int, typer.Option(min=1, help="Workers that train at a time, each on cores of its own.")
    ] = 1,
    num_learners: Annotated[int | None, typer.Option(help=_LEARNERS)] = None,
    local: shared.LocalRun,
    measure: Annotated[bool, typer.Option(help="Time a batch of each kind of work here.")] = True,
    json: shared.Json = False,
) -> None:
    """Estimate what a run and a subset cost, before anything runs.

    Images, bytes and memory are counted; seconds come from one batch each of training, evaluation
    and scoring on this machine. No coordinator is needed; only the data's index is kept.
    """
    from lipt.cli.output import PrintLine, print_result, run_with_progress
    from lipt.plan import Estimate, estimate, lines_of
    from lipt.pretraining import kind_of_run

    asked, flags = choice.arguments(), {"learners.num_learners": num_learners}
    keywords = local.keywords(data, model, *asked["target_data"] or (), flags=flags)

    def work(report: PrintLine) -> Estimate:
        report(f"opening {data}")
        kind = kind_of_run(choice.strategy, is_targeted=bool(choice.target_data))
        opened = kind(data, model, progress=False, **keywords)
        request = opened.resolve(**asked)
        return estimate(opened, request, num_workers=workers, timed=measure, report=report)

    estimated = run_with_progress(work)
    print_result(estimated, lines_of(estimated), as_json=json)
