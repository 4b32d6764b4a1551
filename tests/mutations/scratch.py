"""Scratch copy of the tree, in which mutated modules are imported and tested.

Tests run in a process that is forked from this one, which has imported torch and pytest before,
but nothing of lipt.
"""

import compileall
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import hypothesis
import pytest
import torch

from tests.mutations.mutants import Outcome

ROOT = Path(__file__).resolve().parents[2]
# Imported once, before the first fork: pytest's plugins, and what most of lipt imports.
_PRELOADED = """
PIL.Image _hypothesis_pytestplugin anyio.pytest_plugin cryptography.x509 google.protobuf.json_format
google.rpc.status_pb2 grpc.aio grpc_health.v1.health grpc_reflection.v1alpha.reflection
grpc_status.rpc_status numpy pytest_asyncio.plugin pytest_cov.plugin
pytest_timeout rich.table safetensors.torch sqlite3 torchvision.transforms typer xdist.plugin
"""
_OPTIONS = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", "")
# Pytest's plugins are imported here before pytest can rewrite their assertions.
_WARNINGS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
_WRONG_IMPORT = 99


for _name in _PRELOADED.split():
    with suppress(ImportError):
        importlib.import_module(_name)


class Scratch:
    """One copy of the tree; runs one set of tests at a time."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self._options = options
        self.tree = folder / "tree"
        self.temporary = folder / "tmp"
        self.log = folder / "log"
        self._report = folder / "report.json"
        self._originals: dict[str, str] = {}

    def fill(self) -> None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if not (ROOT / name).is_file() and not (ROOT / name).is_symlink():
                continue
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.tree / name, follow_symlinks=False)
        # A mutated module has another hash, and so is compiled again.
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.tree / "lipt", quiet=2, invalidation_mode=mode)

    def mutate(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._originals[name] = (self.tree / name).read_text("utf-8")
            (self.tree / name).write_text(text, "utf-8")

    def restore(self) -> None:
        for name, text in self._originals.items():
            (self.tree / name).write_text(text, "utf-8")
        self._originals.clear()

    def start(self, tests: Sequence[str], *, limit_s: float) -> "Trial":
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        self._report.unlink(missing_ok=True)
        sys.stdout.flush()
        if not (pid := os.fork()):
            status = int(pytest.ExitCode.INTERNAL_ERROR)
            try:
                status = self._test(tests)
            except BaseException:  # noqa: BLE001 - nothing may come back into the runner's code
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        return Trial(pid, limit_s, self._report)

    def _test(self, tests: Sequence[str]) -> int:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(source, stream)
        os.chdir(self.tree)
        inherited = [path for path in sys.path if path and Path(path).resolve() != ROOT]
        sys.path[:] = [str(self.tree), *inherited]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        sys.dont_write_bytecode = True
        os.environ |= {
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.temporary),
            "LIPT_DATA": os.environ.get("LIPT_DATA", str(ROOT.parent / "shared" / "data")),
        }
        tempfile.tempdir = None  # what this process found before is not TMPDIR
        torch.set_num_threads(1)
        hypothesis.settings.register_profile("mutations", derandomize=True, database=None)
        hypothesis.settings.load_profile("mutations")
        report = _Report()
        arguments = [*_OPTIONS, *_WARNINGS, f"--basetemp={self.temporary / 'pytest'}"]
        code = int(pytest.main([*arguments, *self._options, *tests], plugins=[report]))
        if elsewhere := _imported_elsewhere(self.tree):
            self._report.write_text("\n".join(elsewhere), "utf-8")
            return _WRONG_IMPORT
        report.write(self._report)
        return code


def _imported_elsewhere(tree: Path) -> list[str]:
    """Files of lipt's modules that are not of the scratch copy."""
    files = [
        str(getattr(module, "__file__", None) or tree)
        for name, module in list(sys.modules.items())
        if name == "lipt" or name.startswith("lipt.")
    ]
    return [file for file in files if not file.startswith(str(tree))]


@dataclass(eq=False)
class _Report:
    """Pytest plugin: the first test that failed, and how many passed."""

    failed: str = ""
    num_passed: int = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid
        self.num_passed += report.passed and report.when == "call"

    def write(self, path: Path) -> None:
        text = json.dumps({"failed": self.failed, "num_passed": self.num_passed})
        path.write_text(text, "utf-8")


@dataclass
class Trial:
    _pid: int
    _limit_s: float
    _report: Path
    _started: float = field(default_factory=time.monotonic)
    outcome: Outcome = Outcome.NOT_RUN
    seconds: float = 0.0
    failed: str = ""

    def poll(self) -> bool:
        """Whether the tests ended; they are killed at their limit."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        self.seconds = round(time.monotonic() - self._started, 1)
        if not pid and self.seconds < self._limit_s:
            return False
        self.kill()
        if not pid:
            os.waitpid(self._pid, 0)
            self.outcome = Outcome.TIMEOUT
            return True
        code = os.waitstatus_to_exitcode(status)
        if code == _WRONG_IMPORT:
            raise RuntimeError(f"lipt was imported from elsewhere: see {self._report}")
        report: dict[str, Any] = {"failed": f"exit status {code}", "num_passed": 0}
        if self._report.is_file():
            report = json.loads(self._report.read_text("utf-8"))
        self.failed = report["failed"]
        self.outcome = _outcome(code, report["num_passed"])
        return True

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


def _outcome(code: int, num_passed: int) -> Outcome:
    if code == pytest.ExitCode.OK:
        return Outcome.PASSED if num_passed else Outcome.NOT_RUN
    # Interrupted: a mutated module cannot be imported. Below 0: the process crashed.
    failures = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    return Outcome.FAILED if code in failures or code < 0 else Outcome.NOT_RUN
