"""Slurm's commands for one machine: `stub.py srun ...` runs tasks as local processes.

What a job would be told is in its environment; what the commands do is in the folder SLURM_STUB.
"""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def srun(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("nodes", "ntasks", "relative", "kill-on-bad-exit", "cpus-per-task"):
        parser.add_argument(f"--{flag}", type=int)
    parser.add_argument("--input", choices=["none"])
    for flag in ("no-kill", "label"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    step = parser.parse_args(arguments)
    each = step.ntasks // step.nodes
    assert step.relative + step.nodes <= int(os.environ["SLURM_JOB_NUM_NODES"])
    tasks: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def forward(number: int, _: object) -> None:
        signals.append(number)
        for task in tasks:
            task.send_signal(number)

    # Before the first task: a job that is cancelled meanwhile leaves none behind.
    signal.signal(signal.SIGTERM, forward)
    (_folder() / f"step-{os.getpid()}").touch()
    for task in range(step.ntasks):
        own = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % each),
            "SLURMD_NODENAME": f"n{step.relative + task // each + 1}",
        }
        tasks.append(subprocess.Popen(step.command, stdin=subprocess.DEVNULL, env=os.environ | own))
        for number in signals:
            tasks[-1].send_signal(number)
    return max(abs(task.wait()) for task in tasks)


def scancel(arguments: list[str]) -> int:
    assert arguments == ["--signal=TERM", os.environ["SLURM_JOB_ID"]]
    for step in _folder().glob("step-*"):
        with suppress(ProcessLookupError):
            os.kill(int(step.name.removeprefix("step-")), signal.SIGTERM)
    return 0


def scontrol(arguments: list[str]) -> int:
    assert arguments == ["requeue", os.environ["SLURM_JOB_ID"]]
    (_folder() / "requeued").touch()
    return 0


def _folder() -> Path:
    return Path(os.environ["SLURM_STUB"])


if __name__ == "__main__":
    _, program, *rest = sys.argv
    sys.exit({"srun": srun, "scancel": scancel, "scontrol": scontrol}[program](rest))
