from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lipt
from lipt.common.errors import LiptError
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
    "select(None, fraction='0.1')": r"fraction='0\.1' is not a number in \(0, 1\]\. Give a share",
    "select(None, fraction=True)": r"fraction=True is not a number in",
    "select(None, fraction=10)": r"fraction=10 is not a number in",
    "select(None, fraction=float('nan'))": r"fraction=nan is not a number in",
    "select(None, budget=1.5)": r"budget=1\.5 is not a whole number from 1\. Give a number of ex",
    "select(None, budget=-1)": r"budget=-1 is not a whole number from 1",
    "select(None, fraction=0.1, budget=3)": "fraction 0.1 and budget 3 were given: give one of",
    "select(None, seed='a')": r"seed='a' is not a whole number in 0\.\.2\*\*63 - 1\. Example: seed",
    "select(None, seed=-1)": "seed=-1 is not a whole number",
    "select(None, seed=2**63)": "seed=9223372036854775808 is not a whole number",
    "select(None, strategy=3)": "strategy=3 is not a text",
    "select(None, strategy='\\udce9')": r"strategy='\\udce9' is not a text in UTF-8",
    "Client().start_run(name='caf\\udce9')": r"name='caf\\udce9' is not a text in UTF-8",
    "Client().weights('\\udce9')": r"run_id='\\udce9' is not a text in UTF-8",
    "select(None, strategy='random')": r"no strategy 'random'\. Did you mean uniform",
    "select(None, strategy='balanced')": r"no strategy 'balanced'\. Did you mean uniform_per_class",
    "select(None, strategy='k_center')": r"no strategy 'k_center'\. Did you mean kcenter",
    "compare(None, None, strategies='auto')": r"strategies='auto' is not a list of names",
    "compare(None, None, seeds=0)": "seeds=0 is not a whole number from 1. Example: seeds=1",
    "compare(None, None, fractions=[])": r"fractions=\[\] is not a list of numbers in",
    "compare(None, None, fractions=[1, 2])": r"fractions=\[1, 2\] is not a list of numbers in",
}


@pytest.mark.parametrize("call", NONSENSE)
def test_invalid_arguments_are_refused_before_the_data_is_read(call: str) -> None:
    with pytest.raises(LiptError, match=NONSENSE[call]) as refused:
        eval(f"lipt.{call}", {"lipt": lipt})
    assert len(str(refused.value)) <= 400


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
