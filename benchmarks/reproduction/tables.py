"""Tables: the rows of the paper's tables and figures, and the paper's own figures beside them.

The paper's figures: Ro et al. 2023, ResNet-18 on CIFAR-10, top-1 accuracy in percent. Which
strategy its ablations (tables 3, C and D, figures 2 and 3) select by is not said: GraNd here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.reproduction.cells import (
    AUTO,
    EVERYTHING,
    LIPT,
    RANDOM,
    REDRAWN,
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


def tables(scale: Scale) -> dict[str, Table]:
    """All tables at a scale, by name, in the order in which they are measured."""

    def cell(strategy: str, pretraining: str = "", **settings: object) -> Cell:
        return Cell(scale.name, strategy, 0.0, pretraining, run_text(**settings))

    def baselines(fractions: Sequence[float]) -> tuple[Row, ...]:
        everything = tuple(fractions) if not scale.same_steps else (1.0,)
        return (
            Row("class-balanced random", cell(RANDOM)),
            Row("random, re-drawn every epoch", cell(REDRAWN)),
            Row("`auto`", cell(AUTO)),
            Row("everything, equal steps", cell(EVERYTHING), fractions=everything),
        )

    def table(
        name: str, title: str, question: str, fractions: tuple[float, ...], *rows: Row
    ) -> Table:
        return Table(name, title, question, fractions, (*rows, *baselines(fractions)))

    def figure(
        name: str,
        title: str,
        question: str,
        axis: str,
        field: str,
        default: int,
        own: Sequence[int],
    ) -> Table:
        places = sorted({*scale.sizes.get(axis, own), default})
        rows = tuple(
            Row(
                f"{axis} = {place}",
                cell("grand", LIPT, **({} if place == default else {f"learners__{field}": place})),
                x=place,
            )
            for place in places
        )
        return replace(table(name, title, question, (0.1,), *rows), axis=axis)

    num_learners = int(scale.run.get("learners", {}).get("num_learners", 10))
    num_steps = int(scale.run.get("learners", {}).get("num_steps", 10))
    grand = "GraNd, ordinary warm-up"
    warm = "ordinary warm-up"
    found = (
        table(
            "B.1",
            "GraNd, and GraNd with LiPT (appendix B.1)",
            "Does LiPT's merged model choose better than GraNd's ordinary warm-up?",
            (0.05, *_ALL),
            Row(
                grand,
                cell("grand", scale.ten_models),
                _paper((0.05, *_ALL), 48.13, 58.24, 69.09, 75.80, 80.68, 84.41),
            ),
            Row(
                "GraNd with LiPT",
                cell("grand", LIPT),
                _paper((0.05, *_ALL), 61.58, 71.29, 79.22, 85.09, 88.40, 90.87),
            ),
        ),
        table(
            "2",
            "GLISTER alone and with LiPT (table 2)",
            "Does GLISTER choose better on LiPT's merged model than on an untrained one?",
            (0.01, 0.05, 0.1, 0.2),
            Row(
                "GLISTER alone",
                cell("glister", "epochs:0"),
                _paper((0.01, 0.05, 0.1, 0.2), 27.04, 51.64, 62.75, 64.58),
            ),
            Row(
                "GLISTER with LiPT",
                cell("glister", LIPT),
                _paper((0.01, 0.05, 0.1, 0.2), 47.50, 59.30, 67.74, 75.65),
            ),
            Row(f"GLISTER, {warm}", cell("glister", scale.one_model)),
        ),
        table(
            "B.2",
            "GradMatch, and GradMatch with LiPT (appendix B.2)",
            "Does GradMatch choose better on LiPT's merged model than after an ordinary warm-up?",
            (0.05, *_ALL),
            Row(
                f"GradMatch, {warm}",
                cell("gradmatch", scale.one_model),
                _paper((0.05, *_ALL), 55.24, 78.57, 80.52, 86.72, 88.53, 90.95),
            ),
            Row(
                "GradMatch with LiPT",
                cell("gradmatch", LIPT),
                _paper((0.05, *_ALL), 55.69, 78.74, 85.68, 90.48, 92.30, 93.44),
            ),
        ),
        table(
            "3",
            "What each part of LiPT adds (table 3)",
            "Do pruning and augmentation of the learners each add to merging alone?",
            (0.1, 0.7),
            Row(
                "merging",
                cell("grand", LIPT, pruning__method="none", augmentation__method="crop_flip"),
                _paper((0.1, 0.7), 60.7, 90.5),
            ),
            Row(
                "merging, pruning",
                cell("grand", LIPT, augmentation__method="crop_flip"),
                _paper((0.1, 0.7), 62.2, 90.7),
            ),
            Row(
                "merging, augmentation",
                cell("grand", LIPT, pruning__method="none"),
                _paper((0.1, 0.7), 66.3, 92.6),
            ),
            Row("all", cell("grand", LIPT), _paper((0.1, 0.7), 68.5, 93.6)),
        ),
        table(
            "C",
            "Uniform and greedy soup (appendix C)",
            "Is the greedy soup worth more than the plain mean of all learners?",
            _ALL,
            Row(
                "uniform soup",
                cell("grand", LIPT, soup__method="uniform"),
                _paper(_ALL, 68.05, 78.53, 85.76, 87.74, 89.92),
            ),
            Row(
                "greedy soup",
                cell("grand", LIPT),
                _paper(_ALL, 69.50, 79.39, 88.70, 89.25, 91.18),
            ),
        ),
        table(
            "D",
            "Which weights are pruned, at density 0.8 (appendix D)",
            "Is magnitude the right thing to prune by?",
            _ALL,
            *(
                Row(
                    name,
                    cell(
                        "grand",
                        LIPT,
                        pruning__method=name.lower(),
                        pruning__density_min=0.8,
                        pruning__density_max=0.8,
                    ),
                    _paper(_ALL, *figures),
                )
                for name, figures in (
                    ("SNIP", (63.76, 69.48, 78.25, 83.02, 86.76)),
                    ("random", (62.51, 72.81, 78.62, 83.13, 87.13)),
                    ("magnitude", (66.01, 77.62, 84.21, 86.59, 88.65)),
                )
            ),
        ),
        figure(
            "fig-n",
            "How many learners (figure 3)",
            "Is accuracy not monotonic in n, because too many learners over-smooth the soup?",
            "n",
            "num_learners",
            num_learners,
            (2, 5, 20, 50),
        ),
        figure(
            "fig-M",
            "How many minibatches a learner has (figures 2 and 3)",
            "Does accuracy rise with M?",
            "M",
            "num_minibatches",
            1,
            (2, 5),
        ),
        figure(
            "fig-K",
            "How many passes a learner makes (figures 2 and 3)",
            "Does accuracy flatten after K = 10?",
            "K",
            "num_steps",
            num_steps,
            (1, 3, 20, 40),
        ),
        _to_a_target(scale),
    )
    return {table.name: replace(table, claims=_CLAIMS.get(table.name, ())) for table in found}


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
        Row("random, re-drawn every epoch", cell(REDRAWN)),
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


def _paper(fractions: Sequence[float], *figures: float) -> Mapping[float, float]:
    return dict(zip(fractions, figures, strict=True))
