from __future__ import annotations

import pytest

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, UnknownNameError
from lipt.trainer.main_training.redrawing import Redraw


@pytest.mark.parametrize("name", ["random", "stale", "infobatch"])
def test_every_way_makes_a_source_that_names_itself(digits: Dataset, name: str) -> None:
    source = Redraw.named(name).source(digits, 40, seed=2)
    assert source.identity["redraw"] == name
    assert (source.identity["budget"], source.identity["seed"]) == (40, 2)
    assert source.subset.strategy == f"redrawn_{name}"


def test_options_are_taken_as_text(digits: Dataset) -> None:
    redraw = Redraw.named("stale", {"hardest_out": "0.05"})
    assert redraw.source(digits, 40, seed=0).identity["hardest_out"] == 0.05


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("random", {"pool": "2"}, "pool: there is no such setting"),
        ("stale", {"prune": "0.5"}, "prune: there is no such setting; there are pool, hardest_out"),
        ("infobatch", {"prune": "1"}, "prune = '1'"),
    ],
)
def test_options_that_are_not_there_or_out_of_range_are_refused(
    name: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Redraw.named(name, options)


def test_a_way_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownNameError, match="Choose from: random, stale, infobatch"):
        Redraw.named("often")
