"""`lipt strategies`."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.text import Text

from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.strategies import print_strategies
from lipt.trainer.client.conversion import view_of
from lipt.trainer.views import StrategyView
from lipt.v1 import subset_pb2


def crest_strategy() -> subset_pb2.Strategy:
    option = subset_pb2.StrategyOption(
        name="norm", default_value="last_layer", allowed_values=["last_layer", "full"]
    )
    share = subset_pb2.StrategyOption(
        name="share", default_value="0.01", allowed_values=["number > 0"], help="of a set"
    )
    return subset_pb2.Strategy(
        name="crest",
        summary="coresets of [random] sets",
        paper="Yang et al. 2023",
        balanced_by_default=True,
        returns_weights=True,
        options=[option, share],
        needs=["signals", "validation split"],
        cost="N + k C",
        presets=[subset_pb2.StrategyPreset(name="paper", summary="as on CIFAR-10")],
    )


def test_strategies_are_listed_with_what_they_need_and_their_options(fake: Any, lipt: Any) -> None:
    fake.strategies = [
        crest_strategy(),
        subset_pb2.Strategy(
            name="uniform",
            summary="random examples",
            needs=["nothing"],
            cost="N",
            default_proxy="soup",
            works_without_labels=True,
        ),
        subset_pb2.Strategy(name="best", summary="the best", default_proxy="ridge:patches"),
    ]
    assert lipt("strategies").stdout.splitlines() == [
        "crest: coresets of [random] sets",
        "    needs signals and validation split, with weights, balanced per class, cost N + k C",
        "    Yang et al. 2023",
        "    --option norm=last_layer (one of last_layer, full)",
        "    --option share=0.01 (number > 0): of a set",
        "    --preset paper: as on CIFAR-10",
        "uniform: random examples",
        (
            "    needs nothing, without weights, not balanced per class, cost N, "
            "works with --labels none"
        ),
        "best: the best",
        "    without weights, not balanced per class, proxy ridge:patches",
    ]
    first = json.loads(lipt("strategies", "--json").stdout)[0]
    assert first["options"][0]["name"] == "norm"
    assert first["presets"] == [{"name": "paper", "summary": "as on CIFAR-10"}]
    assert first["needs"] == ["signals", "validation split"]
    assert first["cost"] == "N + k C"


def test_strategies_of_an_older_coordinator_are_listed_without_needs(fake: Any, lipt: Any) -> None:
    fake.strategies = [subset_pb2.Strategy(name="uniform", summary="random examples")]
    assert lipt("strategies").stdout.splitlines() == [
        "uniform: random examples",
        "    without weights, not balanced per class",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_strategies_fit_a_terminal(width: int) -> None:
    console = Screen(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    print_strategies([view_of(StrategyView, crest_strategy())] * 26, console)
    assert isinstance(console.file, io.StringIO)
    text = Text.from_ansi(console.file.getvalue()).plain
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert lines[0].split() == [
        *("strategy", "what", "it", "keeps", "needs", "weights", "per", "class", "cost")
    ]
    assert text.count("crest") == 26
    for words in (
        "[random]",
        "validation",
        "Yang et al. 2023",
        "N + k C",
        "yes",
        "norm=last_layer",
        "preset paper",
    ):
        assert words in text
    assert "N examples" in text
