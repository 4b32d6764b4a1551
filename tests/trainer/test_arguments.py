from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lipt
from lipt.common.errors import LiptError, UnknownNameError

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
    "strategy=3": "strategy=3 is a int, not a name",
}


@pytest.mark.parametrize("given", NONSENSE)
def test_nonsense_is_refused_before_the_data_is_looked_at(given: str) -> None:
    with pytest.raises(LiptError, match=NONSENSE[given]) as refused:
        eval(f"lipt.select(None, {given})", {"lipt": lipt})
    assert len(str(refused.value)) <= 200


def test_torch_is_not_loaded_for_a_refusal() -> None:
    code = (
        "import lipt, sys\n"
        "try: lipt.select(None, fraction='0.1')\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert told == "BudgetError False\n"


def test_numbers_of_numpy_are_numbers() -> None:
    data = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
    asked = {"seed": np.int64(1), "strategy": "uniform", "progress": False}
    assert len(lipt.select(data, budget=np.int64(3), **asked)) == 3  # type: ignore[arg-type]
    assert len(lipt.select(data, fraction=np.float32(0.5), **asked)) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategies": "auto"}, r"strategies='auto' is not a list of names. Give one"),
        ({"seeds": 0}, "seeds=0 is not a whole number from 1. Give one, such as seeds=1"),
        ({"fractions": [0.1, 2]}, r"fraction 2 is outside \(0, 1\]"),
    ],
)
def test_nonsense_is_refused_before_anything_is_compared(
    given: dict[str, object], words: str
) -> None:
    with pytest.raises(LiptError, match=words):
        lipt.compare(None, None, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "meant"),
    [("random", "uniform"), ("balanced", "uniform_per_class"), ("k_center", "kcenter")],
)
def test_a_strategy_of_another_name_is_suggested(strategy: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"no strategy '{strategy}'\. Did you mean {meant}"):
        lipt.select(None, strategy=strategy)
