"""`lipt subset` and `lipt weights`: a run's subsets and weights, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Argument, Option, Typer

from lipt.cli import options as shared
from lipt.cli.output import open_with_progress, print_result, run_with_progress
from lipt.common.terminal import CommandGroup
from lipt.common.text import format_bytes
from lipt.trainer.views import DEFAULT_STRATEGY, WeightsKind

if TYPE_CHECKING:
    from lipt.trainer.subsets.subset import Subset

app = Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Get subsets of a run's data.",
)


@dataclass(frozen=True)
class StrategyFlags:
    strategy: str = Option(
        DEFAULT_STRATEGY, "--strategy", "-s", help="A name from 'lipt strategies'."
    )
    fraction: shared.Fraction = None
    budget: shared.Budget = None
    balanced: bool | None = Option(None, help="Equal shares per class, or not.")
    options: shared.Options = None
    preset: shared.Preset = None
    proxy: shared.Proxy = None
    target_data: list[str] | None = Option(
        None,
        help="Labelled examples of what you care about, for the strategies of a target; repeat it "
        "for several parts, which take turns.",
    )

    def arguments(self) -> dict[str, Any]:
        """The arguments of a call."""
        parts = {name: name for name in self.target_data or ()} or None
        options = shared.parse_options(self.options)
        return {**vars(self), "options": options, "target_data": parts}


@dataclass(frozen=True)
class SubsetFlags(StrategyFlags):
    features: Path | None = Option(
        None,
        help="Your own features, in place of the model's: a safetensors file with the tensor "
        "features (N x d) and, for pairs, paired_features (N x p).",
    )
    labels: Literal["given", "none"] = Option("given", help="none: choose by features alone.")
    soft_labels: bool = Option(False, "--soft-labels", help="Add probabilities as targets.")
    mixture: Path | None = Option(None, help="A file of 'lipt mix': choose within its shares.")


@app.command()
@shared.grouped
def get(
    *,
    out: Path = Option(..., "--out", "-o", help="A .npy, .json or .csv file to write."),
    run: shared.Run = "latest",
    choice: SubsetFlags,
    weights: Path | None = Option(
        None, help="A safetensors file of weights to select on, in place of theta_p."
    ),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Get a subset: the examples that a strategy chooses on a run's model."""
    asked = prepared(choice, out)
    with coordinator.connect() as client:
        subset = client.subset(run, weights=weights, **asked)
    save_and_print(out, subset, as_json=json)


def prepared(choice: SubsetFlags, out: Path, data: str | None = None) -> dict[str, Any]:
    """The arguments of a call, after a check of the size and of the file to write.

    data: where the rows may be written as well.
    """
    shared.require_size(choice.fraction, choice.budget)
    require_format(out, with_data=data is not None)
    shared.require_replaceable(out)
    shared.require_not_data([out], data, *(choice.target_data or ()))
    return choice.arguments()


def require_format(out: Path, *, with_data: bool) -> None:
    """Check that a subset, or with its data the chosen rows, can be written in a file's format."""
    from lipt.trainer.subsets.subset import writer_of

    if not (with_data and is_of_rows(out)):
        with shared.usage_errors():
            writer_of(out)


def is_of_rows(out: Path) -> bool:
    """Whether a file is to hold the chosen rows, not their numbers."""
    return out.suffix.lower() == ".jsonl"


def save(out: Path, subset: Subset, data: Any) -> None:
    """Write a subset, or as .jsonl its rows of the data."""
    if is_of_rows(out):
        subset.to_jsonl(data, out)
    else:
        subset.save(out)


def save_and_print(out: Path, subset: Subset, data: Any = None, *, as_json: bool) -> None:
    save(out, subset, data)
    result = {
        "path": out,
        "num_examples": len(subset),
        "strategy": subset.strategy,
        "digest": subset.digest,
        "fingerprint": subset.fingerprint,
        "manifest": subset.manifest,
    }
    # "latest" does not say which run it is.
    of_run = f" of run {name}" if (name := subset.manifest.get("run_name")) else ""
    lines = [f"{out}: {len(subset)} examples by {subset.strategy}{of_run}, digest {subset.digest}"]
    if subset.findings:
        lines.append("; ".join(subset.findings[:3]))
    if (suffix := out.suffix.lower()) in {".csv", ".jsonl"}:
        lines.append(f"a {suffix} has no manifest: lipt reads .npy and .json")
    if subset.soft_labels is not None:
        lines.append(f"with soft labels; recommended: --soft-labels {subset.recommended_alpha:.2g}")
    if subset.stopped_early:
        lines.append(f"{subset.strategy} stopped early: {subset.stopped_early}")
    print_result(result, lines, as_json=as_json)


@app.command()
def export(
    subset: Path = Argument(..., help="A file of 'lipt subset get'."),
    *,
    data: str = Option(..., help="The data that the subset was chosen from."),
    out: Path = Option(
        ..., "--out", "-o", help="A folder to make of images, or a .jsonl file of a table's rows."
    ),
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Write a subset's images into tar shards, or a table's rows into JSON lines.

    Training elsewhere then needs no other data.
    """
    from lipt.trainer.subsets.subset import Subset

    chosen = Subset.load(subset)
    if is_of_rows(out):
        shared.require_replaceable(out)
        chosen.to_jsonl(data, out)
        line = f"{out}: {len(chosen)} rows, digest {chosen.digest}"
        result = {"path": out, "num_examples": len(chosen), "digest": chosen.digest}
        print_result(result, [line], as_json=json)
        return
    modules, quarantined = shared.modules_of(allow_module, data), chosen.quarantined
    opened = open_with_progress(data, image_size=None, modules=modules, quarantined=quarantined)
    shards = run_with_progress(
        lambda report: chosen.to_webdataset(
            opened,
            out,
            on_progress=lambda done, total: report(f"writing {out}: {done} of {total}"),
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
    files = f"{len(shards)} file{'' if len(shards) == 1 else 's'} of {format_bytes(size_bytes)}"
    line = f"{out}: {len(chosen)} examples in {files}, digest {chosen.digest}"
    print_result(written, [line], as_json=json)


weights_app = Typer(no_args_is_help=True, rich_markup_mode=None, help="Get a run's weights.")


@weights_app.callback()
def weights() -> None:
    """Get a run's weights."""


@weights_app.command("get")
@shared.grouped
def get_weights(
    *,
    out: Path = Option(..., "--out", "-o", help="A .safetensors file to write."),
    run: shared.Run = "latest",
    kind: WeightsKind = Option(
        WeightsKind.PRETRAINED, help="theta* (initial) or theta_p (pretrained)."
    ),
    adapter: bool = Option(
        False, "--adapter", help="Write theta_p's LoRA adapter alone: --out is a folder, for peft."
    ),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Write a run's weights to a safetensors file."""
    if adapter:
        with coordinator.connect() as client:
            folder = run_with_progress(
                lambda _: client.save_adapter(out, run), activity=f"downloading {run}"
            )
        print_result({"path": folder}, [f"{folder}: an adapter, for peft"], as_json=json)
        return
    shared.require_replaceable(out)
    with coordinator.connect() as client:
        activity = f"downloading the {kind} weights of {run}"
        blob = run_with_progress(lambda _: client.save_weights(out, run, kind), activity=activity)
    line = f"{out}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}"
    print_result({"path": out, "kind": kind, **vars(blob)}, [line], as_json=json)
