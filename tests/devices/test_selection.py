"""Every strategy chooses of signals on a device what it chooses of them on the CPU."""

import pytest
import torch

from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import moved
from tests.core.selection.builders import full_signals
from tests.core.selection.test_conformance import LABELS, Options, choose, variants

pytestmark = pytest.mark.slow

CASES = [
    pytest.param(strategy, options, id="-".join([name, *options.values()]))
    for name, strategy in STRATEGIES.items()
    for options in variants(strategy)
]


@pytest.mark.parametrize(("strategy", "options"), CASES)
def test_the_choice_is_the_cpus(device: torch.device, strategy: Strategy, options: Options) -> None:
    # What is pretended takes its time at every operation.
    signals = full_signals(LABELS if device.type == "cuda" else LABELS[:40])
    balanced = strategy.resolve_balance(None)
    expected, found = (
        choose(strategy, given, 11, balanced=balanced, options=options)
        for given in (signals, moved(signals, device))
    )
    assert found.indices_K.tolist() == expected.indices_K.tolist()
    weights_K = found.weights_K.cpu()
    torch.testing.assert_close(weights_K, expected.weights_K, rtol=1e-3, atol=1e-4)
