"""`lipt report`: one HTML file about a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.common.text import say
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import AllowModule, Coordinator, RunArgument, modules_of
from lipt.trainer.cli.arguments.paths import require_apart, require_replaceable
from lipt.trainer.cli.display.waiting import run_talking
from lipt.trainer.views import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.diagnosis.diagnosis import Diagnosis
    from lipt.trainer.report.gathering import Report


@grouped
def report(
    run: RunArgument = "latest",
    *,
    data: Annotated[str, typer.Option(help="The coordinator's data, opened here for pictures.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    strategies: Annotated[
        str, typer.Option(help="Strategies whose subsets are shown, with commas between them.")
    ] = DEFAULT_STRATEGY,
    fraction: Annotated[
        float, typer.Option("--fraction", "-f", help="Share of the data set that they keep.")
    ] = 0.1,
    comparison: Annotated[
        Path | None, typer.Option(help="The file that 'lipt compare' wrote, for the verdict.")
    ] = None,
    diagnosis: Annotated[
        bool,
        typer.Option(
            help="Whether suspects of the diagnosis are shown; the first time it is computed."
        ),
    ] = True,
    allow_module: AllowModule = None,
    coordinator: Coordinator,
) -> None:
    """Write a run's report: the verdict, its costs, the soup, and what was chosen."""
    from lipt.trainer.cli.arguments.overrides import parse_names, refusing_as_usage
    from lipt.trainer.cli.display.opening import left_out_by, open_telling
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.report.gathering import gather
    from lipt.trainer.report.page import render
    from lipt.trainer.writing.files import write_atomically

    if not 0 < fraction <= 1:
        raise typer.BadParameter(f"{fraction} is not in (0, 1], e.g. 0.1", param_hint="--fraction")
    with refusing_as_usage():
        names = parse_names(strategies)
    require_replaceable(out)
    require_apart({"--comparison": comparison, "--out": out})
    found = None if comparison is None else read_trials(comparison)
    with coordinator.connect() as client:

        def work(tell: Callable[[str], None]) -> Report:
            modules = modules_of(allow_module, data)
            dataset = open_telling(data, None, modules, tell, left_out_by(client))
            view = client.wait(client.ready_run(run).run_id)
            diagnosed = _diagnosis(client, tell) if diagnosis else None
            tell("gathering the report")
            return gather(
                client,
                view,
                dataset,
                [(name, fraction) for name in names],
                found,
                diagnosis=diagnosed,
                allowed_modules=modules,
                now=datetime.now(UTC),
            )

        gathered = run_talking(work)
    write_atomically(out, render(gathered).encode())
    for line in (
        f"{out}: run {gathered.run.label}, {', '.join(names)}",
        *gathered.verdict.splitlines(),
    ):
        say(line)


def _diagnosis(client: Client, tell: Callable[[str], None]) -> Diagnosis | None:
    """The diagnosis of the data; None, with a line that says why, where there can be none."""
    from lipt.common.errors import InputError, RequestError

    try:
        return client.diagnose(on_progress=lambda progress: tell(f"diagnosis: {progress}"))
    except (RequestError, InputError) as error:
        say(f"without a diagnosis: {error}", err=True)
        return None
