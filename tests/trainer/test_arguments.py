from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lipt
from lipt.common.errors import LiptError, UnknownNameError
from tests.trainer.made_up import made_up_subset

# Ten kinds of garbage: none is a name, a number, a path, a flag, a dictionary, a list of names,
# a subset or data.
GARBAGE = (5.5, b"x", object(), dict, len, {1, 2}, [[[]]], float("nan"), (1, None), np.array(3))
DATA = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
CALLS: dict[str, Callable[[Any], object]] = {
    "data": lambda given: lipt.select(given, progress=False),
    "X": lambda given: lipt.select((given, [0, 1]), progress=False),
    "y": lambda given: lipt.select((DATA[0], given), progress=False),
    "model": lambda given: lipt.select(DATA, given, strategy="el2n", progress=False),
    **{
        name: lambda given, name=name: lipt.select(DATA, progress=False, **{name: given})
        for name in (
            *("fraction", "budget", "strategy", "seed", "balanced", "options", "preset", "proxy"),
            *("features", "labels", "soft_labels", "run", "image_size", "device", "target"),
            *("allow_modules", "head"),
        )
    },
    "diagnose": lambda given: lipt.diagnose(given, progress=False),
    "pretrain": lambda given: lipt.pretrain(given, progress=False),
    **{
        f"compare {name}": lambda given, name=name: lipt.compare(DATA, DATA, **{name: given})
        for name in ("strategies", "fractions", "baselines", "seeds", "recipe", "proxy", "out")
    },
    "fit": lambda given: lipt.fit("mlp", given),
    "fit model": lambda given: lipt.fit(given, DATA),
    "fit recipe": lambda given: lipt.fit("mlp", DATA, recipe=given),
    "fit subset": lambda given: lipt.fit("mlp", DATA, subset=given),
    "Client": lipt.Client,
    "apply": lambda given: made_up_subset([1]).apply(given),
    "dataset": lambda given: made_up_subset([1]).dataset(given),
    "save": lambda given: made_up_subset([1]).save(given),
    "load": lipt.Subset.load,
    "from_json": lipt.Subset.from_json,
    "sampler": lipt.SubsetSampler,
}


@pytest.mark.parametrize("call", CALLS)
def test_invalid_arguments_are_refused_in_a_short_message(call: str) -> None:
    for given in GARBAGE:
        with pytest.raises(LiptError) as refused:
            CALLS[call](given)
        assert len(str(refused.value)) <= 400


NONSENSE = {
    "fraction='0.1'": "fraction='0.1' is a str, not a number",
    "fraction=True": "fraction=True is a bool, not a number",
    "fraction=10": r"fraction 10 is outside \(0, 1\]. Choose a share",
    "fraction=float('nan')": r"fraction nan is outside \(0, 1\]",
    "budget=1.5": r"budget=1\.5 is not a whole number\. Give a number of examples",
    "budget=-1": r"budget=-1 keeps nothing\. Give a number of examples from 1",
    "fraction=0.1, budget=3": "fraction 0.1 and budget 3 were given: give one of them",
    "seed='a'": "seed='a' is not a whole number from 0. Give one, such as seed=1",
    "seed=-1": "seed=-1 is not a whole number from 0",
    "seed=2**70": "seed=1180591620717411303424 is above 9223372036854775807. Give a smaller one",
    "strategy=3": "strategy=3 is of the type int, not a text",
}


@pytest.mark.parametrize("given", NONSENSE)
def test_invalid_arguments_are_refused_before_the_data_is_read(given: str) -> None:
    with pytest.raises(LiptError, match=NONSENSE[given]) as refused:
        eval(f"lipt.select(None, {given})", {"lipt": lipt})
    assert len(str(refused.value)) <= 200


def test_refusals_do_not_import_torch() -> None:
    code = (
        "import lipt, sys\n"
        "try: lipt.select(None, fraction='0.1')\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert told == "BudgetError False\n"


def test_numpy_numbers_are_accepted() -> None:
    data = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
    asked = {"seed": np.int64(1), "strategy": "uniform", "progress": False}
    assert len(lipt.select(data, budget=np.int64(3), **asked)) == 3  # type: ignore[arg-type]
    assert len(lipt.select(data, fraction=np.float32(0.5), **asked)) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategies": "auto"}, r"strategies='auto' is of the type str, not a list of names"),
        ({"seeds": 0}, "seeds=0 is not a whole number from 1. Give one, such as seeds=1"),
        ({"fractions": [0.1, 2]}, r"fraction 2 is outside \(0, 1\]"),
    ],
)
def test_invalid_comparison_arguments_are_refused_first(
    given: dict[str, object], words: str
) -> None:
    with pytest.raises(LiptError, match=words):
        lipt.compare(None, None, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "meant"),
    [("random", "uniform"), ("balanced", "uniform_per_class"), ("k_center", "kcenter")],
)
def test_a_misspelt_strategy_gets_a_suggestion(strategy: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"no strategy '{strategy}'\. Did you mean {meant}"):
        lipt.select(None, strategy=strategy)
