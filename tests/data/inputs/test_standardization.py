import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.data.inputs.standardization import (
    feature_scale,
    figures_of,
    mean_and_deviation,
    scaled_features,
    standardized,
    stored,
)
from tests.properties import at_most

VALUES_N = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2)))


def as_models_see(values_NP: torch.Tensor) -> torch.Tensor:
    kept_NP = stored(values_NP)
    return standardized(kept_NP, *figures_of(kept_NP))


@settings(max_examples=at_most(40))
@given(
    shift=st.floats(-1e12, 1e12), exponent=st.integers(-300, 300), sign=st.sampled_from([-1.0, 1.0])
)
def test_models_see_the_same_numbers_at_any_shift_and_scale(
    shift: float, exponent: int, sign: float
) -> None:
    expected = as_models_see(VALUES_N)
    torch.testing.assert_close(
        sign * as_models_see(sign * VALUES_N * 10.0**exponent), expected, rtol=0, atol=1e-5
    )
    # Float64 itself resolves 1e12 to 1e-4.
    torch.testing.assert_close(as_models_see(VALUES_N + shift), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, 2.0, 4.0], torch.float32),
        ([0.1, 0.25, math.nan], torch.float32),
        # Float32's numbers near 1.7e9 are 128 apart.
        ([1.7e9, 1.7e9 + 20, 1.7e9 + 40], torch.float64),
        ([1.7e9, 1.7e9 + 20, math.nan], torch.float64),
        # A year of days.
        ([1.7e9, 1.7e9 + 86_400 * 180, 1.7e9 + 86_400 * 365], torch.float32),
        ([123_456_789.0] * 3, torch.float32),
        ([2.0**24, 2.0**24 + 1, 2.0**24 + 2], torch.float64),
        ([1e-40, 2e-40, 4e-40], torch.float64),
        ([1.0, 2.0, 1e31], torch.float64),
        ([math.nan] * 3, torch.float32),
    ],
)
def test_float32_stores_what_it_keeps_apart(values: list[float], dtype: torch.dtype) -> None:
    given_N1 = torch.tensor(values, dtype=torch.float64)[:, None]
    found = stored(given_N1)
    assert found.dtype == dtype
    assert found.to(torch.float64).isnan().equal(given_N1.isnan())


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 1e-12])
def test_figures_equal_a_slow_oracle_at_any_scale(scale: float) -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    sample = np.array(values)[:, None] * scale
    mean_P, std_P = mean_and_deviation(sample, lambda: [sample[:2], sample[2:]])
    assert mean_P[0] / scale == pytest.approx(statistics.fmean(values), rel=1e-12)
    assert std_P[0] / scale == pytest.approx(statistics.pstdev(values), rel=1e-12)


def test_equal_numbers_have_the_deviation_1() -> None:
    sample = np.full((10_000, 1), 0.1)
    assert mean_and_deviation(sample, lambda: [sample])[1].tolist() == [1.0]
    # Nanoseconds of a time of this century that differ by milliseconds.
    times = 1.7e18 + 1e6 * np.arange(4.0)[:, None]
    (deviation,) = mean_and_deviation(times, lambda: [times])[1].tolist()
    assert deviation == pytest.approx(1e6 * math.sqrt(1.25), rel=1e-3)


def test_integers_beyond_float32_are_subtracted_in_float64() -> None:
    large = torch.tensor([[2**40 + 1], [2**40 + 3]])
    found = standardized(large, torch.tensor([2.0**40]).double(), torch.tensor([1.0]).double())
    assert found.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize(
    ("factor", "shift"), [(1.0, 1e7), (1e-18, 0.0), (1e18, 0.0), (1e-300, 0.0), (1e300, 0.0)]
)
def test_distances_of_features_have_the_same_order_at_any_shift_and_scale(
    factor: float, shift: float
) -> None:
    given_NP = VALUES_N * factor + shift
    found = scaled_features(given_NP, feature_scale(given_NP)).float().double()
    shares = [torch.cdist(it, it) / torch.cdist(it, it).max() for it in (found, VALUES_N)]
    torch.testing.assert_close(*shares, rtol=0, atol=1e-6)


def test_usual_features_are_left_as_they_are() -> None:
    features_ND = VALUES_N.float() + 5
    assert scaled_features(features_ND, feature_scale(features_ND)) is features_ND
