"""Which strategies choose by which targets, and that they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.common.errors import InvalidRequestError, SignalsError
from lipt.common.targets.kinds import TargetKind
from lipt.common.targets.values import MultiLabel, Regression
from lipt.core.selection.registry import STRATEGIES, find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.target_kinds import require_kind
from lipt.core.signals.signals import Signals

NUM_EXAMPLES = 40
OTHERS = [TargetKind.CLASSES, TargetKind.NUMBER]
# They read probabilities of classes off errors, or ask the learners for them.
NEED_CLASSES = {
    *("entropy", "margin", "least_confidence", "cal", "glister", "crest"),
    *("forgetting", "aum", "dual", "disagreement"),
}


def signals_of(kind: TargetKind) -> Signals:
    """As many strata as are asked for in turn, and fewer outputs than that."""
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> Signals:
        features_ND = torch.randn(size, 6, generator=generator)
        return Signals(
            errors_NC=_residuals(kind, size, generator),
            features_ND=features_ND,
            labels_N=torch.arange(size) % 5,
            gradient_norms_N=torch.rand(size, generator=generator),
            paired_features_NP=torch.randn(size, 6, generator=generator),
            pictures_N=torch.arange(size),
            kind=kind,
        )

    return replace(part(NUM_EXAMPLES), validation=part(10))


def _residuals(kind: TargetKind, size: int, generator: torch.Generator) -> Tensor:
    outputs = torch.randn(size, 2, generator=generator)
    if kind is TargetKind.CLASSES:
        labels = torch.randint(0, 2, (size, 2), generator=generator)
        return MultiLabel(2).residuals(outputs, labels)
    numbers = torch.randn(size, 2, generator=generator)
    return Regression((0.0, 0.0), (1.0, 1.0)).residuals(outputs, numbers)


def test_all_but_those_that_read_probabilities_work_with_any_targets() -> None:
    for kind in OTHERS:
        able = {name for name, known in STRATEGIES.items() if kind in known.default_kinds()}
        assert set(STRATEGIES) - able == NEED_CLASSES
    assert all(TargetKind.CLASS in known.default_kinds() for known in STRATEGIES.values())


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - NEED_CLASSES))
def test_what_says_that_it_works_chooses_the_budget(name: str, kind: TargetKind) -> None:
    strategy = find_strategy(name)
    chosen = select(
        strategy,
        signals_of(kind),
        10,
        balanced=strategy.resolve_balance(None),
        seed=0,
        options=strategy.parse_options({}),
    )
    assert len(chosen.indices_K) == 10 or chosen.stopped_early


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("margin", {}, TargetKind.NUMBER, "'margin' works with single-label data, and the"),
        ("el2n", {"models": "learners"}, TargetKind.CLASSES, "'el2n' with models=learners works"),
        ("gradmatch", {"gradient": "own_class"}, TargetKind.NUMBER, "with gradient=own_class"),
    ],
)
def test_what_needs_classes_says_so_and_names_those_that_do_not(
    name: str, options: dict[str, str], kind: TargetKind, words: str
) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"{words}.* is {kind.words}\. Choose one of: auto, .*craig"
    ):
        require_kind(find_strategy(name), options, kind)
    require_kind(find_strategy(name), options, TargetKind.CLASS)


def test_signals_of_other_targets_are_refused() -> None:
    strategy = find_strategy("entropy")
    with pytest.raises(SignalsError, match="works with single-label data, and the signals are of"):
        select(strategy, signals_of(TargetKind.NUMBER), 10, balanced=True, seed=0, options={})
