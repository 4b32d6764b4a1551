"""Plots of the tables: what was measured beside what the paper has."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from benchmarks.reproduction.cells import Row, Table
from benchmarks.reproduction.page import Found, before_training, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart without colours, too.
_STYLES = [(f"C{number}", marker) for number, marker in enumerate("osD^vP*X")]
_BASELINE = {"linestyle": "--", "linewidth": 1.0, "alpha": 0.8}


def plot(table: Table, found: Found, path: Path) -> None:
    """Draw a table as SVG: accuracy by fraction, or along a figure's axis.

    The paper's figures stand in a panel of their own: another model, trained for longer, has
    other accuracies, and what is compared is their order.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only here, and heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not any(outcome(table, row, f, found) for row in table.rows for f in table.fractions):
        return
    in_paper = [row for row in table.rows if row.paper]
    # The same picture is the same file; texts stay texts.
    with mpl.rc_context({"svg.hashsalt": table.name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9 if in_paper else 6.5, 3.6), layout="constrained")
        axes = figure.subplots(1, 2 if in_paper else 1, squeeze=False)[0]
        _measured(axes[0], table, found)
        axes[0].set_title("measured here", fontsize=9)
        if in_paper:
            _of_the_paper(axes[1], in_paper)
        for one in axes:
            one.set_ylabel("accuracy, %")
            one.grid(alpha=0.3)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _measured(axes: Axes, table: Table, found: Found) -> None:
    if table.axis:
        _along_the_axis(axes, table, found)
    elif table.targets:
        _over_time(axes, table, found)
    else:
        _by_fraction(axes, table, found)


def _over_time(axes: Axes, table: Table, found: Found) -> None:
    """Of each row its first seed: where accuracy stands so many seconds after the beginning."""
    for row, (color, marker) in zip(table.rows, _STYLES, strict=False):
        own = outcome(table, row, (row.fractions or table.fractions)[0], found)
        if own:
            result = own.by_seed[min(own.by_seed)]
            before = before_training(result)
            seconds = [before + look for _, look, _ in result["looks"]]
            accuracies = [100 * accuracy for _, _, accuracy in result["looks"]]
            axes.plot(
                seconds,
                accuracies,
                color=color,
                marker=marker,
                markersize=4,
                label=_plain(row.label),
            )
    axes.set_xlabel("seconds, pre-training and selection included")


def _by_fraction(axes: Axes, table: Table, found: Found) -> None:
    for row, (color, marker) in zip(table.rows, _STYLES, strict=False):
        places, means, deviations = [], [], []
        for fraction in row.fractions or table.fractions:
            if own := outcome(table, row, fraction, found):
                places.append(100 * fraction)
                means.append(fmean(own.accuracies))
                deviations.append(stdev(own.accuracies) if len(own.accuracies) > 1 else 0.0)
        if not places:
            continue
        if row.fractions == (1.0,):
            axes.axhline(means[0], color="grey", linestyle=":", label=_plain(row.label))
            continue
        style = {} if row.paper else _BASELINE
        axes.errorbar(
            places,
            means,
            deviations,
            color=color,
            marker=marker,
            capsize=2,
            label=_plain(row.label),
            **style,
        )
    axes.set_xlabel("% of the data kept")


def _along_the_axis(axes: Axes, table: Table, found: Found) -> None:
    fraction = table.fractions[0]
    points = [
        (row.x, own.accuracies)
        for row in table.rows
        if row.x and (own := outcome(table, row, fraction, found))
    ]
    deviations = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
    places = [place for place, _ in points]
    means = [fmean(values) for _, values in points]
    axes.errorbar(places, means, deviations, marker="o", capsize=2, label="subset of LiPT")
    axes.set_xscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    axes.set_xlabel(table.axis)
    for row, style in zip(
        (row for row in table.rows if not row.x), ("--", ":", "-.", (0, (1, 3))), strict=False
    ):
        own = outcome(table, row, (row.fractions or table.fractions)[0], found)
        if own:
            axes.axhline(
                fmean(own.accuracies), color="grey", linestyle=style, label=_plain(row.label)
            )


def _plain(label: str) -> str:
    """A label without the page's marks."""
    return label.replace("`", "")


def _of_the_paper(axes: Axes, rows: list[Row]) -> None:
    for row, (color, marker) in zip(rows, _STYLES, strict=False):
        figures = row.paper or {}
        axes.plot(
            [100 * fraction for fraction in figures],
            list(figures.values()),
            color=color,
            marker=marker,
        )
    axes.set_title("in the paper (ResNet-18, CIFAR-10, 200 epochs)", fontsize=9)
    axes.set_xlabel("% of the data kept")
