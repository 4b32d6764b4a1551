"""`lipt plan`, `lipt select` and `lipt mix`: calls of the library, without a coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lipt.cli import options as shared
from lipt.cli.commands.subset import SubsetFlags, prepare, save_and_print
from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig
from lipt.trainer.views import DEFAULT_STRATEGY

plan_app = typer.Typer(rich_markup_mode=None)
select_app = typer.Typer(rich_markup_mode=None)
mix_app = typer.Typer(rich_markup_mode=None)
_LEARNERS = option_help(RunConfig, "learners.num_learners", show_default=False)

Model = Annotated[str | None, typer.Option(help="The model; else one that suits.")]
RunFile = Annotated[Path | None, typer.Option(help="A TOML file with a [run] table.")]


@plan_app.command()
def plan(
    data: Annotated[str, typer.Option(help="The data, as lipt-coordinator takes it.")],
    model: Model = None,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="Strategy that selects.")
    ] = DEFAULT_STRATEGY,
    fraction: shared.Fraction = None,
    budget: shared.Budget = None,
    option: shared.Options = None,
    balanced: Annotated[
        bool | None,
        typer.Option("--balanced/--no-balanced", help="Equal shares of the classes, or not."),
    ] = None,
    proxy: shared.Proxy = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Workers that train at a time, each on cores of its own.")
    ] = 1,
    num_learners: Annotated[int | None, typer.Option(help=_LEARNERS)] = None,
    settings: shared.Settings = None,
    config: RunFile = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    measure: Annotated[bool, typer.Option(help="Time a batch of each kind of work here.")] = True,
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Estimate what a run and a subset cost, before anything runs.

    Images, bytes and memory are counted; seconds come from one batch each of training, evaluation
    and scoring on this machine. No coordinator is needed; only the data's index is kept.
    """
    from lipt.cli.output import PrintLine, print_result, run_with_progress
    from lipt.plan import Estimate, estimate, lines_of
    from lipt.pretraining import Pretrained

    flags = {"learners.num_learners": num_learners}
    run = shared.collect_overrides(flags, settings, config)
    options = shared.parse_options(option)
    asked: Any = {"budget": budget, "balanced": balanced, "options": options, "proxy": proxy}
    where: Any = {"device": device, "allow_modules": shared.modules_of(allow_module, data, model)}

    def work(report: PrintLine) -> Estimate:
        report(f"opening {data}")
        opened = Pretrained(data, model, run=run, image_size=image_size, progress=False, **where)
        request = opened.resolve(strategy, fraction, **asked)
        return estimate(opened, request, num_workers=workers, timed=measure, report=report)

    found = run_with_progress(work)
    print_result(found, lines_of(found), as_json=json)


@select_app.command()
@shared.grouped
def select(
    *,
    data: Annotated[
        str,
        typer.Argument(
            help="The data: csv:PATH?label=COLUMN, imagefolder:PATH; a table's file with --target."
        ),
    ],
    target: Annotated[str | None, typer.Option(help="The table's column to predict.")] = None,
    csv: shared.CsvFile,
    model: Model = None,
    choice: SubsetFlags,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .npy, .csv or .json file.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    settings: shared.Settings = None,
    config: RunFile = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Select the examples worth training on, without a coordinator.

    The whole pipeline runs in this process.
    """
    asked: dict[str, Any] = {**vars(choice), "options": prepare(choice, out)}
    run = shared.collect_overrides({}, settings, config)
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.calls import select as select_here

    data = csv.name(data)
    modules = shared.modules_of(allow_module, data, model)
    where: dict[str, Any] = {"image_size": image_size, "device": device, "allow_modules": modules}
    where["target"] = target
    save_and_print(
        out, select_here(data, model, seed=seed, run=run, **asked, **where), as_json=json
    )


@dataclass(frozen=True)
class MixtureFlags:
    target_data: str = typer.Option(..., help="Labelled examples of what you care about.")
    by: str | None = typer.Option(None, help="The column of one table that names the sources.")
    target: str | None = typer.Option(None, help="The tables' column to predict.")
    check: bool = typer.Option(False, "--check", help="Train on the mixture and on equal shares.")
    drop_duplicates: bool = typer.Option(
        False, "--drop-duplicates", help="Leave out examples that duplicate the target's."
    )

    def sources(self, given: list[str]) -> dict[str, str] | str:
        """The data of each source by name, or of all."""
        if self.by is not None:
            if len(given) > 1:
                raise typer.BadParameter(f"{len(given)} sources were given with --by. Give one.")
            return given[0]
        named = dict(source.partition("=")[::2] for source in given)
        if len(named) < len(given) or not all(name and data for name, data in named.items()):
            raise typer.BadParameter(
                f"{' '.join(given)}: write each source once as NAME=DATA, or one table with --by."
            )
        return named


@mix_app.command()
@shared.grouped
def mix(
    *,
    sources: Annotated[
        list[str], typer.Argument(help="Each source as NAME=DATA; or one table, with --by.")
    ],
    asked: MixtureFlags,
    model: Model = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .json file of the mixture.")],
    subset: Annotated[Path | None, typer.Option(help="A file for --budget examples.")] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", "-k", help="How many examples to draw.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    settings: shared.Settings = None,
    config: RunFile = None,
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Find how much of each source to train on for a target, without a coordinator.

    With --subset and --budget, examples are drawn by the shares: row numbers of the one table, or
    of all sources one after another.
    """
    from lipt.cli.output import print_result
    from lipt.trainer.subsets.subset import writer_of

    named = asked.sources(sources)
    if (subset is None) != (budget is None):
        raise typer.BadParameter("--subset and --budget belong together. Give both, or none.")
    shared.require_replaceable(out, subset)
    shared.require_apart({"--out": out, "--subset": subset})
    if subset is not None:
        with shared.usage_errors():
            writer_of(subset)
    run = shared.collect_overrides({}, settings, config)
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.mixture import mix as mix_here

    data = [named] if isinstance(named, str) else [*named.values()]
    modules = shared.modules_of(allow_module, *data, asked.target_data, model)
    found = mix_here(
        named,
        asked.target_data,
        model,
        target=asked.target,
        source=asked.by,
        seed=seed,
        run=run,
        check=asked.check,
        drop_duplicates=asked.drop_duplicates,
        image_size=image_size,
        device=device,
        allow_modules=modules,
    )
    found.save(out)
    lines = [*str(found).splitlines(), "", f"{out}: shares of {len(found.weights)} sources"]
    shown = {"path": out, "weights": found.weights, "intervals": found.intervals}
    if subset is not None and budget is not None:
        chosen = found.sample(budget, seed=seed)
        chosen.save(subset)
        lines.append(f"{subset}: {len(chosen)} examples by these shares, digest {chosen.digest}")
        shown |= {"subset": subset, "digest": chosen.digest}
    print_result({**shown, "verdict": found.verdict}, lines, as_json=json)
