from __future__ import annotations

import random
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from lipt.arrow import ExactSums, accumulate, merge, solve
from lipt.common.errors import DataError
from lipt.core.proxies.gram_sums import GramSums, WeightedRows, class_weights, scaling_of

pa = pytest.importorskip("pyarrow")

# Of some parts, uneven, one of them empty.
SIZES = (1, 40, 0, 7, 100, 52)
NUM_CLASSES = 4


def features_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Values of many magnitudes, whose float sums depend on their order; 200 x 6."""
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.randn(200, 6, generator=generator)
    features_ND *= 10.0 ** torch.randint(-6, 5, (200, 6), generator=generator)
    features_ND[:, 5] = 3.0  # the same for all
    return features_ND, torch.randint(NUM_CLASSES, (200,), generator=generator)


def batch_of(features_ND: torch.Tensor, labels_N: torch.Tensor) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "features": pa.array(features_ND.tolist(), pa.list_(pa.float32())),
            "label": labels_N.numpy(),
        }
    )


def total(parts: list[Any], **given: Any) -> ExactSums:
    return reduce(merge, [accumulate(part, NUM_CLASSES, **given) for part in parts])


@pytest.mark.parametrize("given", [{}, {"class_counts": (60, 40, 50, 50)}])
def test_sums_are_the_same_to_the_bit_in_any_order_and_any_parts(given: dict[str, Any]) -> None:
    features_ND, labels_N = features_and_labels()
    whole = batch_of(features_ND, labels_N)
    at_once = accumulate(whole, NUM_CLASSES, **given)
    starts = np.cumsum((0, *SIZES[:-1])).tolist()
    parts = [whole.slice(start, size) for start, size in zip(starts, SIZES, strict=True)]
    for seed in range(3):
        random.Random(seed).shuffle(parts)
        assert total(parts, **given).to_bytes() == at_once.to_bytes()
    order_N = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    shuffled = batch_of(features_ND[order_N], labels_N[order_N])
    assert accumulate(shuffled, NUM_CLASSES, **given).to_bytes() == at_once.to_bytes()


def test_what_cancels_in_one_part_and_not_in_another_leaves_no_trace() -> None:
    one, other = torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.tensor([[1.0, 4096.0]])
    labels_N = torch.tensor([0, 1])
    apart = total([batch_of(one[1:], labels_N[1:]), batch_of(other, labels_N[:1])])
    apart = merge(apart, accumulate(batch_of(one[:1], labels_N[:1]), NUM_CLASSES))
    together = merge(
        accumulate(batch_of(one, labels_N), NUM_CLASSES),
        accumulate(batch_of(other, labels_N[:1]), NUM_CLASSES),
    )
    assert apart.to_bytes() == together.to_bytes()


def test_sums_are_exact() -> None:
    # Their squares are 120 bits apart: of a float64 sum the small one would be gone.
    features_ND = torch.tensor([[2.0**30], [2.0**-30], [-1.5]])
    sums = accumulate(batch_of(features_ND, torch.tensor([0, 1, 1])), 2)
    squares = sum(int(part[0, 0]) * 2 ** (12 * power + 72) for power, part in sums.digits.items())
    assert squares == 2 ** (60 + 72) + 2 ** (72 - 60) + 9 * 2 ** (72 - 2)


def test_bytes_bring_the_same_sums_back() -> None:
    sums = accumulate(batch_of(*features_and_labels()), NUM_CLASSES)
    again = ExactSums.from_bytes(sums.to_bytes())
    assert (again.num_examples, again.num_classes) == (200, NUM_CLASSES)
    assert again.to_bytes() == sums.to_bytes()


def test_the_head_is_that_of_the_proxy_s_own_sums() -> None:
    generator = torch.Generator().manual_seed(2)
    features_ND = 5 + torch.randn(200, 6, generator=generator)
    labels_N = torch.randint(NUM_CLASSES, (200,), generator=generator)
    counts = torch.bincount(labels_N).tolist()
    head = solve(
        accumulate(batch_of(features_ND, labels_N), NUM_CLASSES, class_counts=counts), penalty=0.1
    )
    weights_N = class_weights(labels_N)
    scaling = scaling_of(features_ND, weights_N)
    rows = WeightedRows(features_ND, labels_N, weights_N, scaling, NUM_CLASSES)
    sums = GramSums.of(rows, torch.arange(200))
    solved_DC = torch.linalg.solve(sums.upper_DD + 20 * torch.eye(6).double(), sums.targets_DC)
    expected_NC = scaling.apply(features_ND) @ solved_DC + rows.mean_target_C()
    outputs_NC = features_ND.double() @ head.weights_DC + head.bias_C
    assert outputs_NC == pytest.approx(expected_NC.numpy(), abs=1e-6)


def test_a_feature_that_never_varies_counts_nothing() -> None:
    head = solve(accumulate(batch_of(*features_and_labels()), NUM_CLASSES), penalty=1.0)
    assert head.weights_DC[5].tolist() == [0.0] * NUM_CLASSES
    assert bool((head.weights_DC[:5] != 0).any())


def test_what_cannot_be_added_up_is_refused() -> None:
    features_ND, labels_N = features_and_labels()
    whole, infinite = (batch_of(values, labels_N) for values in (features_ND, features_ND / 0))
    with pytest.raises(DataError, match=r"labels are 0 to 3, outside of 0\.\.2"):
        accumulate(whole, 3)
    with pytest.raises(DataError, match="columns features, label, and no 'pixels'"):
        accumulate(whole, NUM_CLASSES, features="pixels")
    with pytest.raises(DataError, match="not finite in float32"):
        accumulate(infinite, NUM_CLASSES)
    for message, columns in {
        "differ in length": {"features": [[1.0], [1.0, 2.0, 3.0]], "label": [0, 1]},
        "'features' is double": {"features": [1.0], "label": [0]},
        "'label' is double": {"features": [[1.0]], "label": [0.5]},
        "1 values of 'label' are null": {"features": [[1.0]] * 2, "label": [0, None]},
    }.items():
        with pytest.raises(DataError, match=message):
            accumulate(pa.RecordBatch.from_pydict(columns), NUM_CLASSES)
    sums = accumulate(whole, NUM_CLASSES)
    fewer = accumulate(batch_of(features_ND[:, :2], labels_N), NUM_CLASSES)
    with pytest.raises(DataError, match="not of one data set"):
        merge(sums, fewer)
    with pytest.raises(DataError, match=r"these are 200 and 0\.0"):
        solve(sums, penalty=0.0)
