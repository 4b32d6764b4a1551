"""Tables: the rows of the paper's tables and figures, and the paper's own figures beside them.

The paper's figures: Ro et al. 2023, ResNet-18 on CIFAR-10, top-1 accuracy in percent. Which
strategy its ablations (tables 3, C and D, figures 2 and 3) select by is not said: GraNd here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.reproduction.cells import (
    AUTO,
    EVERYTHING,
    LIPT,
    RANDOM,
    RESAMPLED,
    Cell,
    Claim,
    Row,
    Scale,
    Table,
    run_text,
)

# What the paper's figures say, by table.
_CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "B.1": (Claim("GraNd with LiPT", "GraNd, ordinary warm-up"),),
    "2": (
        Claim("GLISTER with LiPT", "GLISTER alone"),
        Claim("GLISTER with LiPT", "GLISTER, ordinary warm-up"),
    ),
    "B.2": (Claim("GradMatch with LiPT", "GradMatch, ordinary warm-up"),),
    "3": (
        Claim("merging, pruning", "merging"),
        Claim("merging, augmentation", "merging"),
        Claim("all", "merging"),
    ),
    "C": (Claim("greedy soup", "uniform soup"),),
    "D": (Claim("magnitude", "SNIP"), Claim("magnitude", "random")),
    "fig-n": (Claim("n = 10", "n = 2"), Claim("n = 10", "n = 50")),
    "fig-M": (Claim("M = 5", "M = 1"),),
    "fig-K": (Claim("K = 10", "K = 1"),),
}
_ALL = (0.1, 0.2, 0.3, 0.4, 0.5)
_FROM_5 = (0.05, *_ALL)
_UNPRUNED = {"pruning__method": "none"}
_CROPPED = {"augmentation__method": "crop_flip"}


def tables(scale: Scale) -> dict[str, Table]:
    """All tables at a scale, by name, in the order in which they are measured."""
    found = (*_comparisons(scale), *_ablations(scale), *_figures(scale), _to_a_target(scale))
    return {table.name: replace(table, claims=_CLAIMS.get(table.name, ())) for table in found}


def _comparisons(scale: Scale) -> Iterator[Table]:
    ten, one = scale.ten_models, scale.one_model
    yield _table(
        scale,
        "B.1",
        "GraNd, and GraNd with LiPT (appendix B.1)",
        "Does LiPT's merged model choose better than GraNd's ordinary warm-up?",
        _FROM_5,
        ("GraNd, ordinary warm-up", "grand", ten, {}, "48.13 58.24 69.09 75.80 80.68 84.41"),
        ("GraNd with LiPT", "grand", LIPT, {}, "61.58 71.29 79.22 85.09 88.40 90.87"),
    )
    yield _table(
        scale,
        "2",
        "GLISTER alone and with LiPT (table 2)",
        "Does GLISTER choose better on LiPT's merged model than on an untrained one?",
        (0.01, 0.05, 0.1, 0.2),
        ("GLISTER alone", "glister", "epochs:0", {}, "27.04 51.64 62.75 64.58"),
        ("GLISTER with LiPT", "glister", LIPT, {}, "47.50 59.30 67.74 75.65"),
        ("GLISTER, ordinary warm-up", "glister", one, {}, ""),
    )
    yield _table(
        scale,
        "B.2",
        "GradMatch, and GradMatch with LiPT (appendix B.2)",
        "Does GradMatch choose better on LiPT's merged model than after an ordinary warm-up?",
        _FROM_5,
        (
            "GradMatch, ordinary warm-up",
            "gradmatch",
            one,
            {},
            "55.24 78.57 80.52 86.72 88.53 90.95",
        ),
        ("GradMatch with LiPT", "gradmatch", LIPT, {}, "55.69 78.74 85.68 90.48 92.30 93.44"),
    )


def _ablations(scale: Scale) -> Iterator[Table]:
    yield _table(
        scale,
        "3",
        "Gain of each part of LiPT (table 3)",
        "Do pruning and augmentation of the learners each add to merging alone?",
        (0.1, 0.7),
        ("merging", "grand", LIPT, {**_UNPRUNED, **_CROPPED}, "60.7 90.5"),
        ("merging, pruning", "grand", LIPT, _CROPPED, "62.2 90.7"),
        ("merging, augmentation", "grand", LIPT, _UNPRUNED, "66.3 92.6"),
        ("all", "grand", LIPT, {}, "68.5 93.6"),
    )
    yield _table(
        scale,
        "C",
        "Uniform and greedy soup (appendix C)",
        "Is the greedy soup worth more than the plain mean of all learners?",
        _ALL,
        (
            "uniform soup",
            "grand",
            LIPT,
            {"soup__method": "uniform"},
            "68.05 78.53 85.76 87.74 89.92",
        ),
        ("greedy soup", "grand", LIPT, {}, "69.50 79.39 88.70 89.25 91.18"),
    )
    density = {"pruning__density_min": 0.8, "pruning__density_max": 0.8}
    yield _table(
        scale,
        "D",
        "Which weights are pruned, at density 0.8 (appendix D)",
        "Is magnitude the right thing to prune by?",
        _ALL,
        *(
            (name, "grand", LIPT, {"pruning__method": name.lower(), **density}, paper)
            for name, paper in (
                ("SNIP", "63.76 69.48 78.25 83.02 86.76"),
                ("random", "62.51 72.81 78.62 83.13 87.13"),
                ("magnitude", "66.01 77.62 84.21 86.59 88.65"),
            )
        ),
    )


def _figures(scale: Scale) -> Iterator[Table]:
    learners = scale.run.get("learners", {})
    for axis, field, default, own, title, question in (
        (
            *("n", "num_learners", 10, (2, 5, 20, 50), "How many learners (figure 3)"),
            "Is accuracy not monotonic in n, because too many learners over-smooth the soup?",
        ),
        (
            *("M", "num_minibatches", 1, (2, 5)),
            *("How many minibatches a learner has (figures 2 and 3)", "Does accuracy rise with M?"),
        ),
        (
            *("K", "num_steps", 10, (1, 3, 20, 40)),
            "How many passes a learner makes (figures 2 and 3)",
            "Does accuracy flatten after K = 10?",
        ),
    ):
        usual = default if axis == "M" else int(learners.get(field, default))
        places = sorted({*scale.sizes.get(axis, own), usual})
        settings = {
            place: {} if place == usual else {f"learners__{field}": place} for place in places
        }
        rows = [(f"{axis} = {place}", "grand", LIPT, settings[place], "") for place in places]
        yield _table(scale, f"fig-{axis}", title, question, (0.1,), *rows)


def _table(
    scale: Scale,
    name: str,
    title: str,
    question: str,
    fractions: tuple[float, ...],
    *described: tuple[str, str, str, Mapping[str, object], str],
) -> Table:
    """A table and the baselines.

    Args:
        described: label, strategy, pre-training, settings of the run, and the paper's figures.
    """

    def cell(strategy: str, pretraining: str = "", **settings: object) -> Cell:
        return Cell(scale.name, strategy, 0.0, pretraining, run_text(**settings))

    rows = [
        Row(
            label,
            cell(strategy, pretraining, **settings),
            dict(zip(fractions, map(float, paper.split()), strict=True)) if paper else None,
        )
        for label, strategy, pretraining, settings, paper in described
    ]
    baselines = (
        Row("class-balanced random", cell(RANDOM)),
        Row("random, resampled every epoch", cell(RESAMPLED)),
        Row("`auto`", cell(AUTO)),
        Row(
            "everything, equal steps",
            cell(EVERYTHING),
            fractions=(1.0,) if scale.same_steps else fractions,
        ),
    )
    return Table(name, title, question, fractions, (*rows, *baselines))


def _to_a_target(scale: Scale) -> Table:
    def cell(strategy: str, pretraining: str = "", every: int = 0) -> Cell:
        return Cell(scale.name, strategy, 0.0, pretraining, every=every)

    every = scale.every
    rows = (
        Row("everything", cell(EVERYTHING), fractions=(1.0,)),
        Row(
            "GraNd, ordinary warm-up, chosen again",
            cell("grand", scale.ten_models, every),
            fractions=(0.2,),
        ),
        Row("GraNd with LiPT, chosen again", cell("grand", LIPT, every)),
        Row("class-balanced random", cell(RANDOM)),
        Row("random, resampled every epoch", cell(RESAMPLED)),
        Row("`auto`", cell(AUTO)),
    )
    return Table(
        "1",
        "Seconds to a target accuracy, pre-training included (table 1)",
        "Is LiPT with re-selection the fastest way to the accuracy of everything?",
        (0.1,),
        rows,
        targets=True,
    )
