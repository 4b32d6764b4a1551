"""A coordinator on the examples' own data and model, with a run that is ready."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.cluster import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


_NEEDED = {
    "frame.py": ("pandas",),
    "causal_trl.py": ("trl",),
    "with_lightning.py": ("lightning",),
    "with_huggingface.py": ("transformers", "accelerate"),
    "dask_scores.py": ("dask",),
    "ray_scores.py": ("ray.data",),
    # Spark takes 450 MB, and is in no test environment.
    "spark_scores.py": ("pyspark",),
}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One coordinator and two workers on `mine:data` and `mine:model`, with a run as it comes."""
    pytest.importorskip("sklearn")
    environment = {"PYTHONPATH": with_examples()}
    with Cluster(tmp_path_factory.mktemp("served")) as cluster:
        cluster.start_coordinator(
            "--model", "mine:model", "--data", "mine:data", environment=environment
        )
        for name in ("one", "two"):
            cluster.start_worker(name, "--allow-module", "mine", environment=environment)
        with cluster.client() as client:
            client.wait(client.start_run().run_id)
        yield cluster


@pytest.fixture
def run_example(served: Cluster, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one of the examples in an empty folder, as its reader would."""

    def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {"PYTHONPATH": with_examples(), "LIPT_COORDINATOR": served.address}
        return _run(tmp_path, (name, *arguments), own | environment)

    return run


@pytest.fixture
def run_alone(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return _run(tmp_path, arguments, environment)

    return run


def _run(
    folder: Path, arguments: tuple[str, ...], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    name, *rest = arguments
    for module in _NEEDED.get(name, ()):
        pytest.importorskip(module)
    program = [str(EXAMPLES / name), *rest]
    done = processes.run(program, os.environ | environment, folder=folder, timeout=250)
    assert done.returncode == 0, done.stderr
    return done


def with_examples() -> str:
    return os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
