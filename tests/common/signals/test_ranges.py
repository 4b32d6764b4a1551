"""Ranges of a small network's pass over made-up images."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import SignalsError, WeightsError
from lipt.common.signals.passes import Batches, encode_range, pass_over, read_range, score_range
from lipt.common.weights.specs import Weights
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network

DATASET, MODEL = made_up_dataset(), made_up_network()
TASK = ScoringTask(
    model="tests",
    num_classes=3,
    image=IMAGE,
    fingerprint=DATASET.fingerprint,
    start=0,
    stop=len(DATASET),
    batch_size=4,
    threads=1,
)


def score(task: ScoringTask) -> Weights:
    return score_range(MODEL, DATASET, task, device=CPU)


@given(st.integers(1, 5))
def test_ranges_of_whole_batches_have_the_bits_of_one_pass(num_batches: int) -> None:
    whole = {"errors": torch.empty(len(DATASET), 3), "features": torch.empty(len(DATASET), 64)}
    batches = Batches(DATASET, IMAGE, CPU, TASK.batch_size, lambda *_: None)
    pass_over(MODEL, batches, whole["errors"], whole["features"])
    size = num_batches * TASK.batch_size
    parts = [
        score(replace(TASK, start=start, stop=min(start + size, TASK.stop)))
        for start in range(0, TASK.stop, size)
    ]
    for name, values in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), values)


def test_halves_are_the_nearest_to_the_floats_and_larger_features_are_refused_by_id() -> None:
    halves = score(replace(TASK, half_errors=True, half_features=True))
    for name, values in score(TASK).items():
        assert torch.equal(halves[name], values.half())
    large = made_up_network()
    with torch.no_grad():
        for parameter in list(large.parameters())[:-2]:
            parameter.mul_(1e4)
    task = replace(TASK, start=4, half_features=True)
    with pytest.raises(SignalsError, match=r"features, kept in float16, are not finite .* ids 4"):
        score_range(large, DATASET, task, device=CPU)


def test_file_gives_the_same_bits_and_another_range_or_what_is_not_finite_is_refused() -> None:
    task = replace(TASK, stop=8)
    scored = score(task)
    num_features = scored["features"].shape[1]
    errors, features = read_range(encode_range(scored), task, num_features)
    assert torch.equal(errors, scored["errors"])
    assert torch.equal(features, scored["features"])
    with pytest.raises(WeightsError, match="the model has"):
        read_range(encode_range(scored), TASK, num_features)
    scored["errors"][0, 0] = float("nan")
    with pytest.raises(SignalsError, match="examples 0 to 7"):
        read_range(encode_range(scored), task, num_features)
