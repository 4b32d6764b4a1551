import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cluster import BECOME, LoggedProcess
from tests.deploy.slurm import real

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
SCRIPT = FOLDER.parents[2] / "deploy" / "slurm" / "lipt.sbatch"
# Of the run that every page of docs/ on a way to deploy ends with.
DIGEST = "dbddfc3a07c519e8a0c7fbaebe7750ac04e23414f1d20ae1bf57dcb0993410c4"
# Of this minor version of PyTorch; others may give other bits.
TORCH = "2.15."
BIN = Path(sys.executable).parent


def require_subset_of_docs(said: str) -> None:
    found = re.search(r"180 examples by grand of run first, digest ([0-9a-f]{64})", said)
    assert found is not None, said
    assert found[1] == DIGEST or not torch.__version__.startswith(TORCH)


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "lipt-7"
        self.stub = folder / "stub"
        self.stub.mkdir()
        for name in ("srun", "scancel", "scontrol"):
            self.install(name, FOLDER / "stub.py", name)
        os.mkfifo(self.stub / "dead")
        self._batches: list[LoggedProcess] = []

    def install(self, name: str, *program: object) -> None:
        command = self.stub / name
        words = " ".join(map(str, (sys.executable, *program)))
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)

    def submit(self, *arguments: str, **environment: str) -> LoggedProcess:
        own = {
            "PATH": f"{self.stub}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(FOLDER.parents[2]),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_STUB": str(self.stub),
            "SLURM_SUBMIT_DIR": str(self.folder),
            "LIPT_LEASE__DURATION_SECONDS": "1",
        }
        clean = {name: text for name, text in os.environ.items() if not name.startswith("LIPT_")}
        batch = LoggedProcess(
            [*BECOME, "bash", str(SCRIPT), *arguments],
            self.folder / f"job-{len(self._batches)}.log",
            clean | own | environment,
        )
        self._batches.append(batch)
        return batch

    def end(self) -> None:
        for batch in self._batches:
            batch.stop()

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    submitted = Job(tmp_path)
    yield submitted
    submitted.end()


@pytest.mark.lint
def test_shellcheck_finds_nothing_in_the_script() -> None:
    subprocess.run([BIN / "shellcheck", SCRIPT], check=True)


def test_a_dying_worker_does_not_change_the_result(job: Job) -> None:
    pytest.importorskip("sklearn")
    job.install("lipt-worker", FOLDER / "mortal_worker.py")
    batch = job.submit()
    assert batch.wait() == 0, batch.text()
    require_subset_of_docs(batch.text())
    coordinator, workers = job.log("coordinator"), job.log("workers")
    assert "worker n2-0" in coordinator
    assert "event=lease_expired" in coordinator
    assert "joined" in workers
    assert "n3-0" in workers
    assert coordinator.splitlines()[-1].endswith("stopped")
    assert workers.splitlines()[-1].endswith("stopped")


def test_the_job_has_its_commands_status_and_private_files(job: Job) -> None:
    batch = job.submit("bash", "-c", "exit 3")
    assert batch.wait() == 3, batch.text()
    assert job.home.stat().st_mode & 0o077 == 0
    keys = {path.stem for path in (job.home / "certs").glob("*.key")}
    assert keys == {"ca", "coordinator", "trainer", "worker"}


def test_a_requeued_job_resumes_on_another_node(job: Job) -> None:
    pytest.importorskip("sklearn")
    commands = "lipt run start --name first --seed 0 && exec sleep infinity"
    batch = job.submit("bash", "-c", commands)
    batch.wait_for("run first .* has started")
    assert batch.stop(signal.SIGUSR1) == 0, batch.text()
    assert (job.stub / "requeued").exists()
    assert job.log("coordinator").splitlines()[-1].endswith("stopped")
    again = job.submit(LIPT_HEAD="localhost", SLURM_RESTART_COUNT="1")
    assert again.wait() == 0, again.text()
    assert f"the coordinator is on {socket.gethostname()}:" in batch.text()
    assert "the coordinator is on localhost:" in again.text()
    require_subset_of_docs(again.text())


def test_requeues_are_limited(job: Job) -> None:
    batch = job.submit("sleep", "infinity", SLURM_RESTART_COUNT="10")
    batch.wait_for("the coordinator is on")
    assert batch.stop(signal.SIGUSR1) == 1
    assert "it has been requeued 10 times" in batch.text()
    assert not (job.stub / "requeued").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"COORDINATOR_FLAGS": "--data nothing --model resnet8"},
            "the coordinator did not start: ",
        ),
        ({"WORKER_FLAGS": "--device nothing"}, "no worker is left: see"),
    ],
)
def test_a_failed_start_fails_the_job(job: Job, flags: dict[str, str], words: str) -> None:
    batch = job.submit("sleep", "infinity", **flags)
    assert batch.wait() == 1
    assert words in batch.text()


@pytest.mark.skipif(bool(real.why_not()), reason=real.why_not() or "-")
def test_a_real_slurm_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    with real.slurm(tmp_path / "slurm") as slurm:
        number = slurm.run("sbatch", "--parsable", "--output=job.log", SCRIPT, VENV=BIN.parent)
        # Sooner than what `sbatch --wait` asks for now and then.
        slurm.run("srun", f"--dependency=afterany:{number.strip()}", "true")
        said = (tmp_path / "job.log").read_text()
        assert "JobState=COMPLETED" in slurm.run("scontrol", "show", "job", number.strip()), said
    require_subset_of_docs(said)
    (workers,) = tmp_path.glob("lipt-*/workers.log")
    assert " as n2-0 " in workers.read_text()
