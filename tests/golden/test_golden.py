"""Golden results: every stage of the product gives the recorded bits.

A refactoring leaves all digests of `digests.json` as they are. Where the file has no record of this
kind of machine, only the stages are compared that are the same on every machine.
"""

from pathlib import Path

import pytest

from tests.golden import record
from tests.golden.machine import machine_key
from tests.golden.pipeline import CIFAR10, NAMES, parts


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
