"""`lipt strategies`."""

from __future__ import annotations

import io
import json
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.core.selection.registry import STRATEGIES
from lipt.trainer.cli import main, plugins
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.strategies import print_strategies
from lipt.trainer.client.conversion import view_of
from lipt.trainer.views import StrategyView
from lipt.trainer.writing.jsonable import to_jsonable
from lipt.v1 import subset_pb2
from tests.relay import Fault, Relay, answer

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


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


def listed(*strategies: subset_pb2.Strategy) -> Fault:
    return answer(subset_pb2.ListStrategiesResponse(strategies=strategies))


def test_strategies_are_listed_with_what_they_need_and_their_options(
    relay: Relay, lipt: Any
) -> None:
    strategies = [
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
    relay.every("ListStrategies", listed(*strategies))
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


def test_strategies_of_an_older_coordinator_are_listed_without_needs(
    relay: Relay, lipt: Any
) -> None:
    older = subset_pb2.Strategy(name="uniform", summary="random examples")
    relay.next("ListStrategies", listed(older))
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


def test_without_a_coordinator_the_installed_strategies_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "entry_points", declared_entry_points)
    monkeypatch.delenv("LIPT_COORDINATOR", raising=False)
    done = CliRunner().invoke(main, ["strategies"])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("strategies of this installation; --coordinator HOST:PORT")
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if line[:1] != " "]
    assert names == list(STRATEGIES)
    (first, *_) = json.loads(CliRunner().invoke(main, ["strategies", "--json"]).stdout)
    assert first == to_jsonable(view_of(StrategyView, describe_strategies().strategies[0]))


def test_a_coordinator_that_is_named_is_asked(relay: Relay, lipt: Any, dead_address: str) -> None:
    own = subset_pb2.Strategy(name="its-own", summary="random examples")
    relay.every("ListStrategies", listed(own))
    for named in (lipt("strategies"), lipt("strategies", "--coordinator", relay.address, env={})):
        assert named.stdout.startswith("its-own: random examples")
        assert named.stderr == ""
    assert lipt("strategies", "--coordinator", dead_address).exit_code == 1


def declared_entry_points(*, group: str) -> EntryPoints:
    """This checkout's own, whether or not it is installed."""
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][group]
    return EntryPoints(EntryPoint(name, value, group) for name, value in declared.items())
