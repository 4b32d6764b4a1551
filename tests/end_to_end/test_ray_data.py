"""A Ray Data pipeline that scores all examples, on two nodes of which one vanishes on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.cluster import Cluster
from tests.ray_nodes import RayNodes, two_nodes

pytest.importorskip("ray.data")
pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")

# Every process of Ray's imports PyTorch, on as many cores as there are.
pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Whoever opens the data, or builds the model, says that it is there, and waits until it may.
WAITING = """
import os, pathlib, time

def wait():
    folder = pathlib.Path(os.environ["GATE"])
    (folder / str(os.getpid())).touch()
    while not (folder / "open").exists():
        time.sleep(0.02)

def waiting(given):
    def wait_and_give(*arguments, **named):
        if "GATE" in os.environ:
            wait()
        return given(*arguments, **named)
    return wait_and_give

data, model = waiting(data), waiting(model)
"""


class Gate:
    """What the model's builders are held up by, on nodes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def builders(self) -> set[int]:
        """The processes that have come to it."""
        return {int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()}

    def open(self) -> None:
        """Let all through, from now on."""
        (self.folder / "open").touch()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Where the examples' own `mine` is, with a model that can be held up."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "mine.py").write_text((EXAMPLES / "mine.py").read_text() + WAITING)
    return folder


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def nodes(modules: Path, gate: Gate) -> Iterator[RayNodes]:
    with two_nodes(PYTHONPATH=str(modules), GATE=str(gate.folder)) as nodes:
        yield nodes


def test_node_that_vanishes_with_its_scores_changes_no_subset(
    cluster: Cluster, modules: Path, gate: Gate, nodes: RayNodes
) -> None:
    path = {"PYTHONPATH": str(modules)}
    cluster.start_coordinator("--model", "mine:model", "--data", "mine:data", environment=path)
    cluster.start_worker("one", "--allow-module", "mine", environment=path)
    with cluster.client() as client:
        client.wait(client.start_run().run_id)
    environment = {**path, "LIPT_COORDINATOR": cluster.address, "RAY_ADDRESS": nodes.address}
    # Its files are written into the folder that it is started in.
    inside = f"import os, runpy; os.chdir({str(cluster.directory)!r}); "
    run = f"runpy.run_path({str(EXAMPLES / 'ray_scores.py')!r}, run_name='__main__')"
    pipeline = cluster.start("pipeline", ["-c", inside + run], environment=environment)
    wait_until_at(gate, nodes)
    nodes.vanish()
    gate.open()
    pipeline.wait_for("180 examples, as the coordinator: True")
    assert pipeline.process.wait() == 0


def wait_until_at(gate: Gate, nodes: RayNodes) -> None:
    """Until a process of the doomed node is about to score."""
    moment = Event()
    for _ in range(6000):
        if gate.builders() & nodes.processes_of_the_doomed():
            return
        moment.wait(0.05)
    raise AssertionError("the doomed node has scored nothing")
