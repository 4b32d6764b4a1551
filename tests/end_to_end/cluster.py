"""A coordinator and workers as real processes, ended whatever the test does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from lipt.trainer import Client

_PATIENCE_SECONDS = 120.0


class LoggedProcess:
    """A process whose output is kept, and can be waited for line by line."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output, self.log.open("w") as log:
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
        """All output so far."""
        with self._news:
            return "".join(self._lines)

    def children(self) -> list[int]:
        """The processes that it has started and that are there now."""
        pid = self.process.pid
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(_PATIENCE_SECONDS)
        self._reader.join(_PATIENCE_SECONDS)
        return status


class Cluster:
    """The processes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self._processes: list[LoggedProcess] = []

    def start(
        self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> LoggedProcess:
        """Start `python ARGUMENTS`."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LIPT_")}
        process = LoggedProcess(
            arguments,
            self.directory / f"{name}-{len(self._processes)}.log",
            clean | dict(environment or {}),
        )
        self._processes.append(process)
        return process

    def start_coordinator(
        self,
        *flags: str,
        data: str = "digits",
        listen: str = "127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
    ) -> LoggedProcess:
        """Start a coordinator and wait until it serves."""
        arguments = ["-m", "lipt.coordinator", "--data", data, "--listen", listen]
        if "--model" not in flags:
            arguments += ["--model", "resnet8"]
        if "--state-dir" not in flags:
            arguments += ["--state-dir", str(self.directory / "state")]
        process = self.start("coordinator", [*arguments, *flags], environment)
        self.address = process.wait_for(r"lipt-coordinator on (\S+)")[1]
        return process

    def leases_of(self, seconds: float) -> list[str]:
        """The flags of a coordinator whose leases last so long."""
        config = self.directory / "leases.toml"
        config.write_text(f"[lease]\nduration_seconds = {seconds}\n")
        return ["--config", str(config)]

    def start_worker(
        self, name: str, *flags: str, environment: Mapping[str, str] | None = None
    ) -> LoggedProcess:
        """Start a worker; it joins by itself."""
        arguments = ["-m", "lipt.worker", "--coordinator", self.address, "--device", "cpu"]
        arguments += ["--name", name, "--cache-dir", str(self.directory / f"cache-{name}")]
        return self.start(name, [*arguments, *flags], environment)

    def client(self) -> Client:
        """A trainer's client."""
        return Client(self.address)

    def end(self) -> None:
        """Kill what is left."""
        for process in reversed(self._processes):
            process.stop(signal.SIGKILL)
