"""`lipt subset` and `lipt weights`: what a run has made, as files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.text import format_bytes
from lipt.trainer.cli.display.output import print_result, run_talking
from lipt.trainer.cli.options import (
    AllowModule,
    Budget,
    Coordinator,
    Fraction,
    Json,
    Labels,
    Options,
    Preset,
    Proxy,
    Run,
    grouped,
    modules_of,
    require_replaceable,
)
from lipt.trainer.subsets import EXAMPLES_PER_SHARD
from lipt.trainer.views import DEFAULT_STRATEGY, WEIGHTS_KINDS, WeightsKind

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.subsets.subset import Subset

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get subsets of a run's data.")


@app.callback()
def subsets() -> None:
    """Get subsets of a run's data."""


@dataclass(frozen=True)
class Question:
    """What is asked for."""

    run: Run = "latest"
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="A name from 'lipt strategies'.")
    ] = DEFAULT_STRATEGY
    fraction: Fraction = None
    budget: Budget = None
    balanced: Annotated[
        bool | None,
        typer.Option("--balanced/--no-balanced", help="Equal shares per class, or not."),
    ] = None
    options: Options = None
    preset: Preset = None
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", help="A safetensors file of weights to select on, in place of theta_p."
        ),
    ] = None
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            help="Your own features, in place of the model's: a safetensors file with the tensor "
            "features (N x d) and, for pairs, paired_features (N x p).",
        ),
    ] = None
    proxy: Proxy = None
    labels: Labels = "given"
    soft_labels: Annotated[
        bool,
        typer.Option("--soft-labels", help="Add each example's chances as targets to train on."),
    ] = False

    def ask(self, client: Client, options: dict[str, str]) -> Subset:
        """The coordinator's answer, with lines while it computes."""
        asked: dict[str, Any] = {**vars(self), "options": options}
        return run_talking(
            lambda report: client.subset(
                **asked, on_progress=lambda progress: report(str(progress))
            )
        )


@app.command()
@grouped
def get(
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .npy, .csv, .json or .parquet file to write.")
    ],
    question: Question,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Get a subset: the examples that a strategy chooses on a run's model."""
    if (question.fraction is None) == (question.budget is None):
        raise typer.BadParameter(
            "give one of --fraction and --budget, e.g. --fraction 0.1", param_hint="--fraction"
        )
    from lipt.trainer.cli.overrides import parse_options, refusing_as_usage
    from lipt.trainer.subsets.formats import codec_of, manifest_beside

    with refusing_as_usage():
        codec_of(out)
        options = parse_options(question.options or [])
    beside = manifest_beside(out)
    require_replaceable(out, beside)
    with coordinator.connect() as client:
        subset = question.ask(client, options)
    subset.save(out)
    written = {
        "path": out,
        "num_examples": len(subset),
        "strategy": subset.strategy,
        "digest": subset.digest,
        "fingerprint": subset.fingerprint,
        "manifest": subset.manifest,
    }
    # Of "latest" nobody has said which run it is.
    of_run = f" of run {name}" if (name := subset.manifest.get("run_name")) else ""
    lines = [f"{out}: {len(subset)} examples by {subset.strategy}{of_run}, digest {subset.digest}"]
    if beside is not None:
        lines.append(f"{beside}: its manifest")
    if subset.soft_labels is not None:
        lines.append(f"with soft labels; recommended: --soft-labels {subset.recommended_alpha:.2g}")
    if subset.stopped_early:
        lines.append(f"{subset.strategy} stopped early: {subset.stopped_early}")
    print_result(written, lines, as_json=json)


class Format(StrEnum):
    """What examples are written out to."""

    WEBDATASET = "webdataset"
    PARQUET = "parquet"


@app.command()
def export(
    subset: Annotated[Path, typer.Argument(help="A file of 'lipt subset get'.")],
    *,
    data: Annotated[str, typer.Option(help="The data that the subset was chosen from.")],
    to: Annotated[Format, typer.Option(help="Tar shards, or Parquet files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder to make.")],
    examples_per_shard: Annotated[
        int, typer.Option(min=1, help="How many examples go into one file, at most.")
    ] = EXAMPLES_PER_SHARD,
    allow_module: AllowModule = None,
    json: Json = False,
) -> None:
    """Write a subset's images themselves, sharded, for whoever trains elsewhere."""
    from lipt.trainer.cli.display.output import open_talking
    from lipt.trainer.subsets.subset import Subset

    chosen = Subset.load(subset)
    modules, quarantined = modules_of(allow_module, data), chosen.quarantined
    opened = open_talking(data, image_size=None, modules=modules, quarantined=quarantined)
    write = chosen.to_webdataset if to is Format.WEBDATASET else chosen.to_parquet
    shards = run_talking(
        lambda tell: write(
            opened,
            out,
            examples_per_shard=examples_per_shard,
            on_progress=lambda done, total: tell(f"writing {out}: {done} of {total}"),
        )
    )
    size_bytes = sum(shard.stat().st_size for shard in shards)
    written = {
        "path": out,
        "num_examples": len(chosen),
        "shards": [shard.name for shard in shards],
        "bytes": size_bytes,
        "digest": chosen.digest,
    }
    files = f"{len(shards)} file{'' if len(shards) == 1 else 's'}"
    told = f"{len(chosen)} examples in {files} of {format_bytes(size_bytes)}"
    lines = [f"{out}: {told}, digest {chosen.digest}"]
    print_result(written, lines, as_json=json)


weights_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get a run's weights.")


@weights_app.callback()
def weights() -> None:
    """Get a run's weights."""


@weights_app.command("get")
@grouped
def get_weights(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .safetensors file to write.")],
    run: Run = "latest",
    kind: Annotated[
        str, typer.Option("--kind", help=f"Which weights: {WEIGHTS_KINDS}.")
    ] = WeightsKind.PRETRAINED.value,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Write a run's weights to a safetensors file."""
    if (found := WeightsKind.parse(kind)) is None:
        raise typer.BadParameter(f"{kind!r} is none of {WEIGHTS_KINDS}.", param_hint="--kind")
    require_replaceable(out)
    with coordinator.connect() as client:
        activity = f"downloading the {found} weights of {run}"
        blob = run_talking(lambda _: client.save_weights(out, run, found), activity=activity)
    written = {"path": out, "kind": found, **vars(blob)}
    line = f"{out}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}"
    print_result(written, [line], as_json=json)
