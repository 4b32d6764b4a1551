"""The one-call functions `select`, `diagnose`, `clean` and `compare`.

Progress is a bar in a notebook or terminal, else a line every ten seconds. Arguments are checked
first: torch, which takes seconds to load, is imported within the functions.
"""

# ruff: noqa: PLC0415 - torch

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lipt.core.catalogue import describe
from lipt.trainer.arguments import checked
from lipt.trainer.client.sources import Features, SelectionArguments
from lipt.trainer.views import DEFAULT_FRACTION, ProgressView

if TYPE_CHECKING:
    from torch import nn

    from lipt.trainer.comparison.outcomes import Outcome
    from lipt.trainer.comparison.trial import Trial
    from lipt.trainer.diagnosis.diagnosis import Diagnosis
    from lipt.trainer.diagnosis.marks import Cleaned
    from lipt.trainer.main_training import Recipe
    from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class Comparison:
    """Comparison of strategies with baselines at equal steps: an outcome per row, every training.

    `verdict` is a sentence for each fraction, a table of all differences, and notes, as text.
    """

    outcomes: tuple[Outcome, ...]
    trials: tuple[Trial, ...]
    verdict: str

    def __str__(self) -> str:
        from lipt.trainer.comparison.verdict import text_tables

        return "\n".join([*text_tables(self.outcomes), "", self.verdict])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@checked
def select(
    data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    fraction: float | None = None,
    *,
    target: str | None = None,
    head: str | None = None,
    strategy: str = "auto",
    seed: int = 0,
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    allow_modules: Sequence[str] = (),
    progress: bool | None = None,
    **arguments: Unpack[SelectionArguments],
) -> Subset:
    """Select the examples worth training on: the whole pipeline, in this process.

    The same seed gives the same subset as `lipt.Client(...).subset` on a cluster.

    Arguments of `pretrain`, and:
        fraction: share of the data, in (0, 1]; 0.1 where neither this nor `budget` is given.
        budget: number of examples.
        target_data: examples of what you care about, in the form of the data, or a mapping from the
            names of its parts to theirs, which take turns. The default strategy is then
            `loss_drop`: the examples whose loss falls most after a short training on them.
        strategy: one of `lipt strategies`.
        balanced: equal shares per class; None for the strategy's default.
        options: the strategy's options, by name.
        preset: defaults for `options` and `balanced`, such as "paper".
        proxy: proxy model: "soup" (theta_p), "auto", or "ridge:" with patches, columns, learners,
            soup, initial (theta*), user, backbone, joined by "+"; None for the strategy's default.
        features: replace the model's: a tensor or array (N x d), a safetensors file, its content,
            or {"features": N x d}, for pairs with "paired_features" as well.
        labels: "none" selects by features alone.
        soft_labels: return `Subset.soft_labels` as well, as training targets: probabilities by a
            ridge head fitted without the example.
        mixture: what `lipt.mix` returned for this table by a column, or its file: each source gets
            its share of the examples, and the strategy chooses within it.
        pred_probs: out-of-sample class probabilities of your own model, N x C, columns in the order
            of the class names: an array, tensor or frame. They replace a head's: for `auto`, scores
            of errors, and soft labels.

    Raises:
        ProbabilitiesError: `pred_probs` do not fit the data, or are no probabilities.
        LiptError: as `Client.subset`, or the model cannot be trained.
        DataError: the data is empty or has no labels.
    """
    from lipt.pretraining import kind_of_run

    is_targeted = arguments.get("target_data") is not None
    pretrained = kind_of_run(strategy, is_targeted=is_targeted)(
        data,
        model,
        target=target,
        head=head,
        seed=seed,
        run=run,
        image_size=image_size,
        device=device,
        allow_modules=allow_modules,
        progress=progress,
    )
    return pretrained.select(strategy, fraction, **arguments)


@checked
def diagnose(
    data: Any,
    *,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    target: str | None = None,
    proxy: str | None = None,
    features: Features | None = None,
    pred_probs: Any = None,
    page: str | Path | None = None,
    image_size: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
) -> Diagnosis:
    """Find wrong labels, duplicates and outliers without training a model.

    Of texts with prompts it ranks the completions that look wrong, by the losses of learners that
    have not seen them. Errors are those of `Client.diagnose`.

    Arguments of `pretrain`, and:
        model: of these learners, such as your own; other data needs none.
        proxy: proxy model as HEAD:FEATURES ("ridge:patches"); None for the default.
        features: your own features: {"features": N x d}.
        pred_probs: out-of-sample class probabilities of your own model, N x C, columns in the order
            of the class names. Label errors come from them; the proxy's features give the rest.
        page: file to write as HTML, such as "diagnosis.html": the findings with pictures, where a
            person marks labels for `lipt.clean`. MissingExtraError without jinja2.
    """
    from lipt.common.errors import InvalidRequestError
    from lipt.data.targets.kinds import TargetKind
    from lipt.pretraining import Pretrained

    looked_at = Pretrained(
        data, model, target=target, image_size=image_size, device=device, progress=progress
    )
    if model is not None and looked_at.data.target.kind is not TargetKind.TOKENS:
        raise InvalidRequestError(
            f"the model {looked_at.model} was given, and only completions of texts are compared by "
            "one. Leave it out."
        )
    if page is None:
        return looked_at.diagnose(proxy, features=features, pred_probs=pred_probs)
    from lipt.trainer.files import write_atomically
    from lipt.trainer.report.report import open_templates, render_diagnosis

    open_templates("the page of lipt.diagnose")  # before anything is computed
    diagnosis = looked_at.diagnose(proxy, features=features, pred_probs=pred_probs)
    write_atomically(Path(page), render_diagnosis(diagnosis, looked_at.data).encode())
    return diagnosis


@checked
def clean(
    data: Any,
    diagnosis: Diagnosis | None = None,
    *,
    marks: str | Path | None = None,
    target: str | None = None,
) -> Cleaned:
    """Return the data without wrong labels, and with corrected ones, as a map-style data set.

        cleaned = lipt.clean(data, lipt.diagnose(data), marks="marks.json")
        loader = DataLoader(cleaned, batch_size=64, shuffle=True)

    Its examples are those of `data`. `indices` are their rows there, `labels` their class numbers.

    Args:
        data: the diagnosed data, as in `lipt.select`, with one class per example.
        diagnosis: its surely wrong labels and surplus duplicates are dropped, unless marked
            otherwise; None drops marked examples only.
        marks: the file that a person saved in `diagnosis.html`. Labels marked right stay, wrong
            ones are dropped, and others get the class that was chosen.
        target: as in `open_dataset`.

    Raises:
        MarksError: a damaged file, or the diagnosis or the marks of other data.
        ConfigError: neither is given, or the data has no classes.
    """
    from lipt.trainer.diagnosis.marks import clean as clean_by

    return clean_by(data, diagnosis, marks, target)


@checked
def compare(
    data: Any,
    test: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    *,
    target: str | None = None,
    target_data: Any = None,
    head: str | None = None,
    strategies: Sequence[str] = ("auto",),
    fractions: Sequence[float] = (DEFAULT_FRACTION,),
    baselines: Sequence[str] | None = None,
    seeds: int = 3,
    recipe: Recipe | Mapping[str, Any] | None = None,
    proxy: str | None = None,
    soft_labels: bool = False,
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    allow_modules: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare strategies with baselines by training for equally many steps.

    Arguments of `pretrain`, and:
        test: held-out data, in the same form as `data`; with `target_data` more of the target's.
        target_data: texts of what you care about, as in `select`. All trainings then start from one
            theta* for each seed. The table has the loss on `test`, and right completions.
        strategies: names of strategies.
        fractions: shares of the data.
        baselines: of `uniform`, `uniform_per_class`, `resampled` and `everything`; with
            `target_data` of `untrained`, `uniform` and `everything`. None for all.
        seeds: number of repetitions of the whole pipeline.
        recipe: of every training, such as {"steps": 300}; None for the paper's, which is long.
        proxy: proxy model; None for each strategy's default.
        soft_labels: whether all but resampled random is trained with soft labels, too.
        out: file of trials; trials in it are not repeated.

    Raises:
        MissingExtraError: scipy, of the extra `report`, is not installed.
    """
    from lipt.common.imports import import_extra, modules_of
    from lipt.data.loading import open_set

    # Fail now, not after hours of training.
    import_extra("scipy", package="scipy", extra="report", needed_for="lipt.compare")
    from lipt.data.held_out import TEST_DATA
    from lipt.pretraining import Pretrained
    from lipt.trainer.comparison.compare import compare as run_comparison
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.trial import BASELINES, BASELINES_OF_TEXTS, ComparisonPlan
    from lipt.trainer.comparison.verdict import verdict
    from lipt.trainer.main_training import Recipe
    from lipt.trainer.progress import progress_display

    opened = functools.partial(
        open_set, target=target, image_size=image_size, allow_modules=allow_modules
    )
    train, held_out = opened("data", data), opened(TEST_DATA, test)
    pretrain: Callable[[int], Pretrained]
    choose: Callable[..., Subset] = Pretrained.select
    texts = None
    settings: dict[str, Any] = {"run": run, "device": device, "allow_modules": allow_modules}
    if target_data is None:
        of_seed = functools.partial(Pretrained, train, model, head=head, **settings)
        pretrain = functools.cache(lambda seed: of_seed(seed=seed, progress=False))
    else:
        from lipt.text_comparison import TextChoices

        choices = TextChoices.of(train, target_data, model, target=target, settings=settings)
        choices.require_other(held_out)
        strategies = choices.strategies(strategies, proxy=proxy, soft_labels=soft_labels)
        recipe = choices.recipe(recipe)
        pretrain, choose, texts = choices.pretrained, choices.choose, choices.target
    all_baselines = BASELINES if texts is None else BASELINES_OF_TEXTS
    with tempfile.TemporaryDirectory() as folder, progress_display(shown=progress) as show:
        plan = ComparisonPlan(
            strategies=tuple(strategies),
            fractions=tuple(sorted(fractions)),
            seeds=tuple(range(seeds)),
            model=pretrain(0).model,
            recipe=Recipe.of(recipe),
            run_overrides=dict(run or {}),
            baselines=all_baselines if baselines is None else tuple(baselines),
            proxy=proxy,
            soft_labels=soft_labels,
        )
        trials = run_comparison(
            describe() if texts is None else None,
            plan,
            train,
            held_out,
            out=Path(out) if out is not None else Path(folder) / "trials.jsonl",
            device=device,
            allowed_modules=(*modules_of(plan.model), *allow_modules),
            model=pretrain(0).model_source,
            texts=texts,
            print_line=lambda line: show(ProgressView(line, 0, 0)),
            pretrain=pretrain,
            choose=choose,
        )
    rows = outcomes(trials)
    return Comparison(tuple(rows), tuple(trials), verdict(rows))
