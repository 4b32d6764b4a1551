"""`lipt mix`: how much of each source to train on; `lipt mixture`: the same of a run's sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.cli import options as shared
from lipt.common.terminal import CommandGroup

if TYPE_CHECKING:
    from lipt.trainer.mixture import Mixture
    from lipt.trainer.subsets.subset import Subset

app = typer.Typer(rich_markup_mode=None)

Out = Annotated[
    Path, typer.Option("--out", "-o", help="A .json file of the mixture; .yaml for LLaMA-Factory.")
]


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
        if len(given) == 1 and "?" in given[0].partition("=")[0]:
            return given[0]  # its own options name the sources
        parted = [source.partition("=") for source in given]
        named = {name: data for name, _, data in parted}
        if len(named) < len(given) or not all(name and data for name, data in named.items()):
            raise typer.BadParameter(
                f"{' '.join(given)}: write each source once as NAME=DATA, or one table with --by."
            )
        return named


@app.command()
@shared.grouped
def mix(
    *,
    sources: Annotated[
        list[str],
        typer.Argument(help="Each source as NAME=DATA; or one table, with --by or source=COLUMN."),
    ],
    asked: MixtureFlags,
    model: shared.OwnModel = None,
    out: Out,
    subset: Annotated[
        Path | None, typer.Option(help="A file for --budget examples; .jsonl for the rows.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", "-k", help="How many examples to draw.")
    ] = None,
    local: shared.LocalRun,
    json: shared.Json = False,
) -> None:
    """Find how much of each source to train on for a target, without a coordinator.

    With --subset and --budget, examples are drawn by the shares: row numbers of the one table, or
    of all sources one after another.
    """
    from lipt.cli.commands.subset import require_format, save

    named = asked.sources(sources)
    if (subset is None) != (budget is None):
        raise typer.BadParameter("--subset and --budget belong together. Give both, or none.")
    _require_place(out)
    shared.require_replaceable(subset)
    shared.require_apart({"--out": out, "--subset": subset})
    if subset is not None:
        require_format(subset, with_data=True)
    data = [named] if isinstance(named, str) else [*named.values()]
    shared.require_not_data([out, subset], *data, asked.target_data)
    keywords = local.keywords(*data, asked.target_data, model)
    from lipt.common.process import wait_passively

    wait_passively()
    from lipt.mixture import mix as mix_here

    mixed = mix_here(
        named,
        asked.target_data,
        model,
        target=asked.target,
        source=asked.by,
        check=asked.check,
        drop_duplicates=asked.drop_duplicates,
        **keywords,
    )
    mixed.save(out)
    drawn = None
    if subset is not None and budget is not None:
        chosen = mixed.sample(budget, seed=local.seed)
        save(subset, chosen, named)
        drawn = subset, chosen
    print_mixture(out, mixed, drawn, as_json=json)


run_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Get mixtures of a run's sources.",
)


@run_app.callback()
def mixture() -> None:
    """Get mixtures of a run's sources."""


@run_app.command()
@shared.grouped
def get(
    *,
    target_data: str = typer.Option(..., help="Labelled examples of what you care about."),
    out: Out,
    run: shared.Run = "latest",
    target: str | None = typer.Option(None, help="The column to predict of a table."),
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Get a mixture: the shares with which a run's learners by source merge best on a target.

    Start such a run with: lipt run start --shards source
    """
    _require_place(out)
    modules = shared.modules_of(allow_module, target_data)
    with coordinator.connect() as client:
        mixed = client.mixture(run, target_data, target=target, allow_modules=modules)
    mixed.save(out)
    print_mixture(out, mixed, as_json=json)


def _require_place(out: Path) -> None:
    """Check that a mixture can be written to a file of this name."""
    from lipt.trainer.mixture import mixture_writer

    shared.require_replaceable(out)
    with shared.usage_errors():
        mixture_writer(out)


def print_mixture(
    out: Path, mixture: Mixture, drawn: tuple[Path, Subset] | None = None, *, as_json: bool
) -> None:
    """A mixture's shares and verdict, and the examples that were drawn by it."""
    from lipt.cli.output import print_result

    lines = [*str(mixture).splitlines(), "", f"{out}: shares of {len(mixture.weights)} sources"]
    shown: dict[str, Any] = {
        "path": out,
        "weights": mixture.weights,
        "intervals": mixture.intervals,
        "verdict": mixture.verdict,
    }
    if drawn is not None:
        file, subset = drawn
        lines.append(f"{file}: {len(subset)} examples by these shares, digest {subset.digest}")
        shown |= {"subset": file, "digest": subset.digest}
    print_result(shown, lines, as_json=as_json)
