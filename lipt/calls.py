"""The calls `select`, `diagnose` and `compare`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lipt.common.config.values import validate
from lipt.common.imports import import_extra, modules_of
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.data import MODULE, open_dataset
from lipt.pretraining import Pretrained
from lipt.progress import showing
from lipt.trainer.client.conversion import view_of
from lipt.trainer.client.sources import Features
from lipt.trainer.comparison import table
from lipt.trainer.comparison.baselines import BASELINES
from lipt.trainer.comparison.compare import compare as run_comparison
from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Plan, Trial
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.main_training import Recipe
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DEFAULT_FRACTION, CostsView, ProgressView, StrategyView

# Comparison of one call: who chooses, and what came of every strategy, shown as a table.


@dataclass(frozen=True)
class Comparison:
    """Strategies against what people do instead, at equal steps.

    Attributes:
        outcomes: one per strategy and fraction, over all seeds.
        trials: every training.
        verdict: whether a strategy beat random, in a sentence.
    """

    outcomes: tuple[Outcome, ...]
    trials: tuple[Trial, ...]
    verdict: str

    def __str__(self) -> str:
        return "\n".join([*table.plain(self.outcomes), "", self.verdict])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th>{escape(name)}</th>" for name in table.HEADER)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in table.cells(row)) + "</tr>"
            for row in self.outcomes
        )
        return f"<table><tr>{head}</tr>{rows}</table><p>{escape(self.verdict)}</p>"


class Run:
    """A seed's pre-training in this process."""

    def __init__(self, seed: int, pretrained: Pretrained) -> None:
        self.run_id = str(seed)
        self.pretrained = pretrained
        self.fitted = pretrained.fitted

    @property
    def costs(self) -> CostsView:
        """What it has taken so far; nothing goes to a worker."""
        seconds = self.pretrained.seconds
        stages = ("initialization", "sharding", "training", "merging")
        taken = {f"{stage}_seconds": seconds.get(f"{stage}_seconds", 0.0) for stage in stages}
        return CostsView(**taken, bytes_to_workers=0, bytes_from_workers=0)


class Chooser:
    """Chooses in this process, from one pre-training per seed.

    Args:
        pretrained: makes a seed's.
    """

    def __init__(self, pretrained: Callable[[int], Pretrained]) -> None:
        self._make = pretrained
        self._runs: dict[int, Run] = {}

    def run_of(self, seed: int) -> Run:
        """The pre-training of a seed, which trains when it is asked for what needs it."""
        if seed not in self._runs:
            self._runs[seed] = Run(seed, self._make(seed))
        return self._runs[seed]

    def strategies(self) -> list[StrategyView]:
        """What there is to choose by."""
        return [view_of(StrategyView, strategy) for strategy in describe_strategies().strategies]

    def subset(
        self, run: str, strategy: str, *, fraction: float, proxy: str | None = None
    ) -> Subset:
        """Choose by a run's name."""
        return self._runs[int(run)].pretrained.select(strategy, fraction, proxy=proxy)


# Calls: choose, diagnose and compare, in this process.


def select(
    data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    fraction: float | None = None,
    *,
    budget: int | None = None,
    strategy: str = "auto",
    seed: int = 0,
    balanced: bool | None = None,
    options: Mapping[str, object] | None = None,
    preset: str | None = None,
    proxy: str | None = None,
    features: Features | None = None,
    labels: Literal["given", "none"] = "given",
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    allow_modules: Sequence[str] = (),
    progress: bool | None = None,
) -> Subset:
    """Choose the examples worth training on: the whole pipeline, in this process.

    The same seed gives the same subset. What comes back is what `lipt.Client(...).subset` gives
    on a cluster.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a Hugging
            Face `datasets.Dataset`, or a name, as `open_dataset` takes them.
        model: what examples are judged by: a built-in name, `package.module:factory`, a
            function of `num_classes`, or an `nn.Module`, whose weights learners begin with and
            which stays as it is. None takes one that suits the kind of data.
        fraction: of the data, in (0, 1]; a tenth where neither this nor `budget` is given.
        budget: how many examples.
        strategy: one of those that `lipt strategies` lists.
        seed: of everything random.
        balanced: equal shares per class; the strategy's default where None.
        options: the strategy's own, by name.
        preset: values of them by one name, such as "paper".
        proxy: what judges the examples: "soup", "ridge:patches", "auto", ...
        features: to select on in place of the model's: {"features": N x d}.
        labels: "none" to choose what to label.
        run: settings of the run, nested as in `RunConfig`. Defaults that are too large for the
            data are lowered to fit it.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        allow_modules: modules that `run` may name a model of.
        progress: False shows nothing of how far it is, True also where no terminal or
            notebook is.

    Raises:
        LiptError: as `Client.subset`, or the model cannot be trained.
        DataError: the data is empty, or not labelled examples.
    """
    pretrained = Pretrained(
        data,
        model,
        seed=seed,
        run=run,
        image_size=image_size,
        device=device,
        allow_modules=allow_modules,
        progress=progress,
    )
    return pretrained.select(
        strategy,
        fraction,
        budget=budget,
        balanced=balanced,
        options=options,
        preset=preset,
        proxy=proxy,
        features=features,
        labels=labels,
    )


def diagnose(
    data: Any,
    *,
    proxy: str | None = None,
    features: Features | None = None,
    image_size: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
) -> Diagnosis:
    """What is wrong with data, before anything is trained on it: labels, duplicates, outliers.

    Args:
        data: as in `select`.
        proxy: what looks at the data, as HEAD:FEATURES ("ridge:patches"); None chooses.
        features: of your own: {"features": N x d}.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        progress: as in `select`.

    Raises:
        LiptError: as `Client.diagnose`.
        DataError: the data is empty, or not labelled examples.
    """
    looked_at = Pretrained(data, image_size=image_size, device=device, progress=progress)
    return looked_at.diagnose(proxy, features=features)


def compare(
    data: Any,
    test: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    *,
    strategies: Sequence[str] = ("auto",),
    fractions: Sequence[float] = (DEFAULT_FRACTION,),
    baselines: Sequence[str] = BASELINES,
    seeds: int = 3,
    recipe: Recipe | Mapping[str, Any] | None = None,
    proxy: str | None = None,
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Whether strategies beat what people do instead, by training for equally many steps.

    Args:
        data: what the subsets are of, as in `select`.
        test: what accuracy is measured on, in the same forms.
        model: what is pre-trained and trained, as in `select`.
        strategies: their names.
        fractions: of the data.
        baselines: of "uniform", "uniform_per_class", "redrawn" and "everything".
        seeds: how many seeds of the whole pipeline.
        recipe: of every training; the paper's, which is long, where None: {"steps": 300}.
        proxy: what judges the examples; each strategy's default where None.
        run: settings of the runs, nested as in `RunConfig`.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        out: a file of trials; those that it has are not done again.
        progress: as in `select`.

    Raises:
        LiptError: as `lipt.trainer.comparison.compare.compare`.
        MissingExtraError: scipy is not installed, the extra `report`.
    """
    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt.compare")
    made = recipe if isinstance(recipe, Recipe) else validate(Recipe, dict(recipe or {}))
    train, held_out = (open_dataset(given, image_size=image_size) for given in (data, test))
    chooser = Chooser(
        lambda seed: Pretrained(train, model, seed=seed, run=run, device=device, progress=False)
    )
    first = chooser.run_of(0).pretrained
    with tempfile.TemporaryDirectory() as folder, showing(asked=progress) as show:
        plan = Plan(
            strategies=tuple(strategies),
            fractions=tuple(sorted(fractions)),
            seeds=tuple(range(seeds)),
            model=first.model,
            recipe=made,
            run_overrides=dict(run or {}),
            baselines=tuple(baselines),
            proxy=proxy,
        )
        trials = run_comparison(
            chooser,
            plan,
            train,
            held_out,
            out=Path(out) if out is not None else Path(folder) / "trials.jsonl",
            device=device,
            allowed_modules=(MODULE, *modules_of(first.model)),
            say=lambda line: show(ProgressView(line, 0, 0)),
            pretrain=chooser.run_of,
        )
    rows = outcomes(trials)
    return Comparison(tuple(rows), tuple(trials), table.verdict(rows))
