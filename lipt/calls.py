"""Calls: choose, diagnose and compare, each on a session of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lipt.common.config.validation import validate
from lipt.common.imports.extras import import_extra
from lipt.comparing import Comparison
from lipt.opening import open_dataset
from lipt.session import Session
from lipt.showing import showing
from lipt.trainer.client.sources import Features
from lipt.trainer.comparison.baselines import BASELINES
from lipt.trainer.comparison.compare import compare as run_comparison
from lipt.trainer.comparison.outcomes import outcomes
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.comparison.verdict import verdict
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.main_training import Recipe
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DEFAULT_FRACTION, ProgressView


def select(
    data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    fraction: float | None = None,
    *,
    budget: int | None = None,
    strategy: str = "auto",
    seed: int = 0,
    workers: int = 0,
    balanced: bool | None = None,
    options: Mapping[str, object] | None = None,
    preset: str | None = None,
    proxy: str | None = None,
    features: Features | None = None,
    labels: Literal["given", "none"] = "given",
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    state_dir: str | Path | None = None,
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
        workers: 0 trains learners in this process, one after another; more are so many
            processes, which need a model that has a name.
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
        state_dir: a folder that keeps runs and subsets; None keeps nothing.
        allow_modules: modules that `run` may name a model of.
        progress: False shows nothing of how far it is, True also where no terminal or
            notebook is.

    Raises:
        LiptError: as `Client.start_run` and `Client.subset`.
        DataError: the data is empty, or not labelled examples.
        ConfigError: another session is open in this process, or the model cannot be had by
            processes.
    """
    if fraction is None and budget is None:
        fraction = DEFAULT_FRACTION
    with (
        Session(
            data,
            model,
            workers=workers,
            image_size=image_size,
            device=device,
            state_dir=state_dir,
            allow_modules=allow_modules,
        ) as session,
        showing(asked=progress) as show,
    ):
        ready = session.pretrain(run, seed=seed, show=show)
        return session.client.subset(
            ready.run_id,
            strategy,
            fraction=fraction,
            budget=budget,
            balanced=balanced,
            options=options,
            preset=preset,
            proxy=proxy,
            features=features,
            labels=labels,
            on_progress=show,
        )


def diagnose(
    data: Any,
    *,
    proxy: str | None = None,
    features: Features | None = None,
    image_size: int | None = None,
    device: str = "auto",
    state_dir: str | Path | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """What is wrong with data, before anything is trained on it: labels, duplicates, outliers.

    Args:
        data: as in `select`.
        proxy: what looks at the data, as HEAD:FEATURES ("ridge:patches"); None chooses.
        features: of your own: {"features": N x d}.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        state_dir: a folder that keeps what was found; None keeps nothing.
        progress: as in `select`.

    Raises:
        LiptError: as `Client.diagnose`.
        DataError: the data is empty, or not labelled examples.
    """
    session = Session(data, image_size=image_size, device=device, state_dir=state_dir)
    with session, showing(asked=progress) as show:
        return session.client.diagnose(proxy=proxy, features=features, on_progress=show)


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
    workers: int = 0,
    image_size: int | None = None,
    device: str = "auto",
    state_dir: str | Path | None = None,
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
        workers: as in `select`.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        state_dir: a folder that keeps runs and subsets; None keeps nothing.
        out: a file of trials; those that it has are not done again.
        progress: as in `select`.

    Raises:
        LiptError: as `lipt.trainer.comparison.compare.compare`.
        MissingExtraError: scipy is not installed, the extra `report`.
    """
    # Now rather than after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt.compare")
    made = recipe if isinstance(recipe, Recipe) else validate(Recipe, dict(recipe or {}))
    held_out = open_dataset(test, image_size=image_size)
    session = Session(
        data,
        model,
        workers=workers,
        image_size=image_size,
        device=device,
        state_dir=state_dir,
    )
    with session, tempfile.TemporaryDirectory() as folder, showing(asked=progress) as show:
        plan = Plan(
            strategies=tuple(strategies),
            fractions=tuple(sorted(fractions)),
            seeds=tuple(range(seeds)),
            model=session.model,
            recipe=made,
            run_overrides=dict(run or {}),
            baselines=tuple(baselines),
            proxy=proxy,
        )
        trials = run_comparison(
            session.client,
            plan,
            session.data,
            held_out,
            out=Path(out) if out is not None else Path(folder) / "trials.jsonl",
            device=device,
            allowed_modules=session.allowed_modules,
            say=lambda line: show(ProgressView(line, 0, 0)),
            pretrain=lambda seed: session.pretrain(run, seed=seed, show=show),
        )
    rows = outcomes(trials, None)
    return Comparison(tuple(rows), tuple(trials), verdict(rows))
