import hashlib
import struct

import numpy as np
import pytest
import torch

from tests.golden.digests import digest
from tests.golden.machine import machine_key


def test_the_canonical_bytes_are_those_of_the_docstring() -> None:
    parts = [b"array int64 [2]", struct.pack("<qq", 3, -1)]
    content = b"".join(struct.pack("<q", len(part)) + part for part in parts)
    expected = hashlib.sha256(content).hexdigest()[:16]
    assert digest(torch.tensor([3, -1])) == expected
    assert digest(np.array([3, -1])) == expected
    assert digest(np.array([3, -1], ">i8")) == expected


def test_layout_and_order_of_names_do_not_count() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)
    assert digest({"a": a, "b": b}) == digest({"b": b, "a": a.T.contiguous().T})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int16)),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [[1, 2]]),
        (1, 1.0),
        (1, True),
        ("1", b"1"),
        (0.1 + 0.2, 0.3),
        (None, "None"),
    ],
)
def test_every_difference_counts(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_a_value_without_canonical_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="a set has no canonical bytes"):
        digest({"a": {1, 2}})


def test_a_machine_has_one_key_whatever_was_drawn_before() -> None:
    torch.manual_seed(1)
    first = machine_key()
    torch.randn(3)
    assert machine_key() == first
    assert torch.__version__ in first
