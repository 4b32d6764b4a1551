"""A real Prometheus, where Debian's package `prometheus` or another brings the binaries."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import BECOME, LoggedProcess

ROOT = Path(__file__).resolve().parents[1]
OBSERVABILITY = ROOT / "deploy" / "observability"
_PATIENCE_SECONDS = 120.0


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install Debian's package prometheus")
    return found


def promtool(*arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        [tool("promtool"), *arguments],
        cwd=OBSERVABILITY,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with self._opener.open(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        found = [float(it["value"][1]) for it in self.get("query", query=expression)["result"]]
        return [value for value in found if value == value]  # noqa: PLR0124 - as NaN is told

    def wait_for(self, expression: str, holds: Callable[[list[float]], object]) -> list[float]:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not holds(values := self.values(expression)):
            assert time.monotonic() < until, f"{expression} is {values}"
            time.sleep(0.1)  # it scrapes when it is due, and tells nobody
        return values


@contextmanager
def prometheus(folder: Path, scrape_configs: str) -> Iterator[Prometheus]:
    shutil.copy(OBSERVABILITY / "alerts.yml", folder)
    settings = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
    config = folder / "prometheus.yml"
    config.write_text(f"{settings}rule_files: [alerts.yml]\nscrape_configs:\n{scrape_configs}")
    arguments = [
        tool("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    process = LoggedProcess([*BECOME, *arguments], folder / "prometheus.log", os.environ)
    try:
        address = process.wait_for(r'"Listening on" address=(\S+)')[1]
        process.wait_for("Server is ready to receive web requests")
        yield Prometheus(address)
    finally:
        process.stop(signal.SIGKILL)
