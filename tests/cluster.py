"""A coordinator and workers as real processes, which end with the test whatever it does."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from lipt import Client
from lipt.common.access.tokens import TokenSource
from lipt.common.rpc.channel import open_channel
from tests import processes
from tests.played_worker import PlayedWorker

COORDINATOR = ("-m", "lipt.coordinator")
WORKER = ("-m", "lipt.worker")
# Python becomes the program that follows.
BECOME = ("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])")
# Small enough for two busy cores, large enough to be the whole pipeline.
SMALL_RUN: dict[str, Any] = {
    "model": "resnet8",
    "learners": {"num_learners": 4, "num_steps": 2, "num_minibatches": 1, "batch_size": 32},
    "soup": {"batch_norm_examples": 64},
}
_PATIENCE_SECONDS = 120.0
_SHOWN_CHARACTERS = 8_000


class LoggedProcess:
    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        output, theirs = os.pipe()
        self.process = processes.start(arguments, environment, output=theirs, errors=theirs)
        os.close(theirs)
        self._output = os.fdopen(output, encoding="utf-8", errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._output as output, self.log.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches; an error when the process ends without one."""
        seen = 0
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self._lines)
                if self._ended or not self._news.wait(_PATIENCE_SECONDS):
                    text = "".join(self._lines)
                    raise AssertionError(f"no line like {pattern!r} in:\n{text}")

    def text(self) -> str:
        with self._news:
            return "".join(self._lines)

    def children(self) -> list[int]:
        return children_of(self.process.pid)

    def computing(self) -> list[int]:
        """The processes that run a coordinator's jobs: children of its fork server."""
        return [child for server in self.children() for child in children_of(server)]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def refused(self) -> str:
        """All output of a process that ends by itself, with status 1 and no traceback."""
        status, text = self.wait(), self.text()
        assert status == 1, text
        assert "Traceback" not in text
        return text

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.send(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(_PATIENCE_SECONDS)
        self._reader.join(_PATIENCE_SECONDS)
        return status


class Cluster:
    """The processes of one test; `address` is that of the coordinator that was started last."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.address = ""
        self._processes: list[LoggedProcess] = []
        self._channels = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channels.close()
        for process in reversed(self._processes):
            process.stop(signal.SIGKILL)
        # Shown by pytest, of a test that fails.
        for process in self._processes:
            sys.stdout.write(f"--- {process.log.name}\n{process.text()[-_SHOWN_CHARACTERS:]}\n")

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> LoggedProcess:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LIPT_")}
        process = LoggedProcess(
            arguments,
            self.directory / f"{name}-{len(self._processes)}.log",
            clean | dict(environment or {}),
        )
        self._processes.append(process)
        return process

    def launch_coordinator(
        self,
        *flags: str,
        program: Sequence[str] = COORDINATOR,
        environment: Mapping[str, str] | None = None,
    ) -> LoggedProcess:
        """Start a coordinator of the digits, and do not wait; `flags` add to or replace its own."""
        own = {
            "--data": "digits",
            "--model": "resnet8",
            "--listen": "127.0.0.1:0",
            "--state-dir": str(self.state),
        }
        missing = [word for flag in own.items() if flag[0] not in flags for word in flag]
        return self.start("coordinator", [*program, *missing, *flags], environment)

    def start_coordinator(self, *flags: str, **options: Any) -> LoggedProcess:
        process = self.launch_coordinator(*flags, **options)
        self.address = process.wait_for(r"lipt-coordinator on (\S+)")[1]
        return process

    def config(self, text: str) -> list[str]:
        file = self.directory / "config.toml"
        file.write_text(text)
        return ["--config", str(file)]

    def leases_of(self, seconds: float) -> list[str]:
        return self.config(f"[lease]\nduration_seconds = {seconds}\n")

    def start_worker(
        self,
        name: str,
        *flags: str,
        program: Sequence[str] = WORKER,
        environment: Mapping[str, str] | None = None,
    ) -> LoggedProcess:
        own = ["--coordinator", self.address, "--device", "cpu", "--name", name]
        own += ["--cache-dir", str(self.directory / f"cache-{name}")]
        return self.start(name, [*program, *own, *flags], environment)

    def play_worker(
        self,
        name: str,
        *,
        has_data: bool = False,
        token: str | None = None,
        source: str | None = None,
    ) -> PlayedWorker:
        shown = TokenSource.from_options(None, token)
        channel = self._channels.enter_context(open_channel(self.address, token=shown))
        return PlayedWorker(self.directory, channel, name, has_data=has_data, source=source)

    def client(self) -> Client:
        return Client(self.address)

    def lipt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return processes.run(["-m", "lipt.cli", *arguments, "--coordinator", self.address])


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found
