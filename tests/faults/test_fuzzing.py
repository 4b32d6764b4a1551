"""Coverage-guided fuzzing, where atheris is installed (`pip install 'lipt[fuzz]'`)."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.fuzzing import CHUNKS
from tests.faults.test_hostile_bytes import READERS
from tests.faults.test_hostile_messages import CONVERTERS

# Whichever comes first.
NUM_CASES, MAX_SECONDS = 1_000_000, 30
MIN_CASES = 1_000


@pytest.mark.faults
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: pip install 'lipt[fuzz]'",
)
@pytest.mark.parametrize("target", [*READERS, CHUNKS, *CONVERTERS])
def test_input_that_reaches_new_code_is_read_or_refused_by_name(
    cluster: Cluster, target: str, record: Record
) -> None:
    corpus = cluster.directory / "corpus"
    corpus.mkdir()
    flags = [f"-runs={NUM_CASES}", f"-max_total_time={MAX_SECONDS}", "-seed=1"]
    flags += [f"-artifact_prefix={cluster.directory}/"]
    fuzzing = cluster.start("fuzzing", ["-m", "tests.faults.fuzzing", target, str(corpus), *flags])
    assert fuzzing.wait() == 0, fuzzing.text()[-5000:]
    num_cases = int(fuzzing.wait_for(r"^Done (\d+) runs")[1])
    record(f"{num_cases} cases, {len(list(corpus.iterdir()))} of them reached new code")
    assert num_cases >= MIN_CASES
