"""No global side effects: neither by importing the strategies nor by running them.

A library that sets NumPy's error handling or seeds a generator when it is imported
changes what the rest of the process computes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.select import select
from lipt.core.selection.strategy import Balance, Strategy
from tests.core.selection.builders import full_signals, half

# Third-party packages come first: what they do on import is not ours to answer for.
IMPORT_ALL = """
import hashlib, importlib, importlib.util, json, logging, pkgutil, random, sys, warnings
import numpy, pydantic, torch
if importlib.util.find_spec("numba"):
    import numba
    import numba.core.caching
import torch.func

def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()

def state():
    return {
        "numpy errors": sorted(numpy.geterr().items()),
        "numpy generator": digest([part.tolist() if hasattr(part, "tolist") else part
                                   for part in numpy.random.get_state()]),
        "python generator": digest(random.getstate()),
        "torch generator": digest(torch.get_rng_state().tolist()),
        "torch type": str(torch.get_default_dtype()),
        "torch threads": torch.get_num_threads(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "warnings": digest(warnings.filters),
        "loggers": [repr(logging.root.handlers), logging.root.level, logging.root.disabled],
        "recursion": sys.getrecursionlimit(),
    }

before = state()
import lipt.core.selection as package
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
print(json.dumps({"before": before, "after": state(), "names": names}))
"""


def test_importing_every_module_changes_nothing() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True
    )
    found = json.loads(finished.stdout)
    assert found["after"] == found["before"]
    assert {
        "lipt.core.selection.registry",
        "lipt.core.selection.solvers.representatives",
    } <= set(found["names"])
    assert finished.stderr == ""


def global_state() -> dict[str, Any]:
    return {
        "numpy errors": np.geterr(),
        "numpy generator": [np.asarray(part).tolist() for part in np.random.get_state()],  # noqa: NPY002
        "python generator": random.getstate(),
        "torch generator": torch.get_rng_state().tolist(),
        "torch type": torch.get_default_dtype(),
        "torch threads": torch.get_num_threads(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
    }


def tensors_of(value: object, path: str = "signals") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif is_dataclass(value):
        for part in fields(value):
            yield from tensors_of(getattr(value, part.name), f"{path}.{part.name}")


@pytest.mark.parametrize(
    "strategy", [pytest.param(strategy, id=name) for name, strategy in STRATEGIES.items()]
)
@pytest.mark.parametrize("precision", [16, 32])
def test_running_a_strategy_changes_neither_globals_nor_signals(
    strategy: Strategy, *, precision: int
) -> None:
    signals = full_signals([0, 1, 2, 2] * 12)
    if precision == 16:
        signals = half(signals)
    copies = {path: tensor.clone() for path, tensor in tensors_of(signals)}
    options = strategy.parse_options({})
    before = global_state()
    for balanced in (False, True):
        if strategy.balance is (Balance.NEVER if balanced else Balance.ALWAYS):
            continue
        select(strategy, signals, 13, balanced=balanced, seed=1, options=options)
    assert global_state() == before
    for path, tensor in tensors_of(signals):
        assert torch.equal(tensor, copies[path]), path
