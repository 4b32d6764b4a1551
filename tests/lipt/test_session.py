"""A session against the real service: what it gives, what it leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError, DataError, RunFailedError
from lipt.session import Session
from lipt.trainer.views import ProgressView
from tests.cluster import Cluster
from tests.lipt.digits import QUICK, few_digits

pytestmark = pytest.mark.slow

MODULE = """
import numpy as np
from sklearn.datasets import load_digits

def data():
    digits = load_digits()
    images = (digits.images[:240] * 15).astype(np.uint8)
    return list(zip(images, digits.target[:240].tolist()))
"""


class Tiny(nn.Module):
    """Ends in a linear layer, and counts how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(images))
        return logits


@pytest.fixture(autouse=True)
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def live_threads() -> set[str]:
    """Threads of Python that run; gRPC's leave entries of a dummy class behind."""
    dummy = threading._DummyThread  # type: ignore[attr-defined]
    return {thread.name for thread in threading.enumerate() if not isinstance(thread, dummy)}


def temporary_sessions(folder: Path) -> list[str]:
    # lipt-UID is where local tokens are; it stays, empty.
    own = f"lipt-{os.geteuid()}"
    files = [path.name for path in folder.iterdir() if path.name != own]
    return files + [path.name for path in (folder / own).glob("*.token")]


def this_process() -> tuple[object, ...]:
    """What a session must leave as it was."""
    return (
        live_threads(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        list(sys.path),
        logging.getLogger().handlers[:],
        signal.getsignal(signal.SIGINT),
        dict(os.environ),
    )


def test_it_gives_what_the_service_gives_and_leaves_nothing_behind(
    cluster: Cluster, own_temporary: Path
) -> None:
    (cluster.directory / "face_digits.py").write_text(MODULE)
    found = {"PYTHONPATH": str(cluster.directory)}
    cluster.start_coordinator("--data", "face_digits:data", environment=found)
    cluster.start_worker("one")
    with cluster.client() as client:
        run = client.wait(client.start_run({**QUICK, "model": "resnet8", "seed": 3}).run_id)
        expected = client.subset(run.run_id, "el2n", budget=30)
    files = temporary_sessions(own_temporary)
    before = this_process()
    with Session(few_digits()) as session:
        assert session.model == "resnet8"
        ready = session.pretrain(QUICK, seed=3)
        subset = session.client.subset(ready.run_id, "el2n", budget=30)
        dataset = session.client.info().dataset
    after = this_process()
    assert subset.digest == expected.digest
    assert subset.fingerprint == expected.fingerprint
    assert subset.manifest.keys() == expected.manifest.keys()
    assert dataset is not None
    assert dataset.image_shape == (1, 8, 8)
    assert after == before
    assert temporary_sessions(own_temporary) == files


def test_a_module_is_where_learners_begin_and_stays_as_it_is() -> None:
    torch.manual_seed(0)
    module = Tiny()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with Session(few_digits(), module) as session:
        run = session.pretrain(QUICK)
        given = session.client.weights(run.run_id, "initial")
    import safetensors.torch

    initial = safetensors.torch.load(given)
    assert initial.keys() == before.keys()
    assert all(torch.equal(initial[name], value) for name, value in before.items())
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


def test_a_function_makes_the_model() -> None:
    asked: list[int] = []

    def make(num_classes: int) -> nn.Module:
        asked.append(num_classes)
        return Tiny()

    with Session(few_digits(), make) as session:
        assert session.pretrain(QUICK).config.model == "lipt.given:model"
    assert set(asked) == {10}


def test_settings_are_made_to_fit_and_progress_is_told() -> None:
    told: list[ProgressView] = []
    quick = {**QUICK, "learners": {"num_steps": 1}}
    with Session(few_digits()) as session:
        run = session.pretrain(quick, show=told.append)
    # 240 digits less 117 held out: 20 of each class, at most half of it. Ten get too few.
    assert run.config.learners.num_learners * run.config.learners.batch_size <= 123
    assert (run.config.learners.num_steps, bool(run.fitted)) == (1, True)
    assert any("learners done" in item.activity for item in told)


def test_processes_train_what_has_a_name(tmp_path: Path) -> None:
    with Session(few_digits(), workers=2) as session:
        run = session.pretrain(QUICK)
        workers = session.client.info().workers
    assert run.config.model == "resnet8"
    assert {worker.name for worker in workers} <= {"worker-0", "worker-1"}
    assert {learner.worker for learner in run.learners} <= {"worker-0", "worker-1"}


def test_processes_cannot_be_given_a_module() -> None:
    with pytest.raises(ConfigError, match=r"cannot be given the Tiny.*Name the model"):
        Session(few_digits(), Tiny(), workers=2)


def test_one_session_at_a_time() -> None:
    with Session(few_digits()), pytest.raises(ConfigError, match="another session is open"):
        Session(few_digits()).__enter__()
    with Session(few_digits()) as session:
        assert session.client.info().dataset is not None
    with pytest.raises(ConfigError, match="the session is not open"):
        session.client  # noqa: B018


def broken_row() -> Any:
    images, labels = few_digits()
    rows: list[Any] = list(zip(images, labels.tolist(), strict=True))
    rows[7] = (rows[7][0], "seven")
    return rows


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (broken_row, "row 7"),
        (list, "holds no"),
    ],
)
def test_data_that_cannot_be_used_is_refused_and_leaves_nothing_behind(
    data: Callable[[], Any], message: str, own_temporary: Path
) -> None:
    before = live_threads()
    with pytest.raises(DataError, match=message), Session(data()):
        pass
    assert live_threads() == before
    assert temporary_sessions(own_temporary) == []


class Breaks(Tiny):
    """Works when it is looked at, and not where it is trained."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) == 16:
            raise ValueError("broken on purpose")
        return super().forward(images)


def test_a_run_that_fails_says_why_and_leaves_nothing_behind(
    own_temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = live_threads()
    quick = {**QUICK, "learners": {**QUICK["learners"], "max_attempts": 1}}
    session = Session(few_digits(), lambda num_classes: Breaks())
    with pytest.raises(RunFailedError, match="broken on purpose"), session:
        session.pretrain(quick)
    assert live_threads() == before
    assert temporary_sessions(own_temporary) == []


INTERRUPTED = """
import os, signal, sys, threading
import lipt
from lipt.session import Session
from tests.lipt.digits import few_digits
stage = sys.argv[1]

def show(progress):
    if stage in progress.activity:
        os.kill(os.getpid(), signal.SIGINT)

class Rows:
    def __init__(self):
        self.rows = list(zip(*few_digits()))
        self.reads = 0
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, row):
        self.reads += 1
        if stage == "reading" and self.reads == 50:
            os.kill(os.getpid(), signal.SIGINT)
        return self.rows[row]

try:
    with Session(Rows(), workers=int(sys.argv[2])) as session:
        # So many steps that nobody waits for their end.
        run = session.pretrain({"learners": {"num_steps": 10_000}}, show=show)
except KeyboardInterrupt:
    print("interrupted", flush=True)
dummy = threading._DummyThread
print([one.name for one in threading.enumerate() if not isinstance(one, dummy)])
print(os.listdir(os.environ["TMPDIR"]))
"""


@pytest.mark.parametrize(("stage", "workers"), [("reading", 0), ("training", 0), ("training", 1)])
def test_ctrl_c_leaves_nothing_behind(stage: str, workers: int, own_temporary: Path) -> None:
    # No guard of a main module, and none that could be imported: the program is an argument.
    started = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, stage, str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(own_temporary)},
        cwd=Path(__file__).parents[2],
    )
    try:
        output, _ = started.communicate(timeout=200)
    finally:
        started.kill()
    own = f"lipt-{os.geteuid()}"
    lines = output.splitlines()
    assert lines[:2] == ["interrupted", "['MainThread']"]
    assert lines[2] in ("[]", f"['{own}']")
    assert started.returncode == 0
    group = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(own_temporary) not in group
