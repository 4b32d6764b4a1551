import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.golden import record
from tests.golden.machine import machine_key
from tests.golden.pipeline import CIFAR10, NAMES, parts
from tests.golden.record import FILE, digest, load, save


def test_the_committed_file_has_the_saved_format(tmp_path: Path) -> None:
    save(load(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == FILE.read_bytes()


def test_canonical_bytes_equal_the_docstring_s() -> None:
    parts = [b"array int64 [2]", struct.pack("<qq", 3, -1)]
    content = b"".join(struct.pack("<q", len(part)) + part for part in parts)
    expected = hashlib.sha256(content).hexdigest()[:16]
    assert digest(torch.tensor([3, -1])) == expected
    assert digest(np.array([3, -1])) == expected
    assert digest(np.array([3, -1], ">i8")) == expected
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


@pytest.fixture(scope="module")
def key() -> str:
    return machine_key()


@pytest.mark.parametrize("part", NAMES)
def test_every_stage_gives_the_recorded_bits(
    part: str, key: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cifar10 = request.getfixturevalue("cifar10_jpeg") if part == CIFAR10 else None
    stages = parts(cifar10)[part](tmp_path)
    golden = record.load()
    exact, local = record.expected(golden, part, key)
    exact_stages = [stage for stage in stages if stage.exact]
    compared = exact_stages if local is None else stages
    difference = record.describe_difference(part, compared, {**exact, **(local or {})})
    if difference is not None:
        here = golden["machines"].get(key)
        by = f"\nThis machine's digests were recorded on: {here['machine']['cpu']}." if here else ""
        pytest.fail(f"{difference}{by}", pytrace=False)
    if local is None and len(exact_stages) < len(stages):
        pytest.skip(
            f"{part}: {len(exact_stages)} exact stages are equal; the other "
            f"{len(stages) - len(exact_stages)} have no record for {key}. `make golden` adds it."
        )
