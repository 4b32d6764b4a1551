"""What is distributed: built once from a copy of the sources, the wheel from the unpacked sdist."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.each_extra import TRIALS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("common", "coordinator", "core", "trainer", "worker", "proto/lipt/v1")
# Where another folder than its own name says is installed.
INSTALLED = {"proto/lipt/v1": "lipt/v1"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# What `make` and tests leave in a checkout, and hidden folders.
_NOT_SOURCES = ("build", "dist", "*.egg-info", "__pycache__", "site", "lipt-demo", "generated")
_HIDDEN = (".git", ".venv*", ".*_cache", ".cache", ".hypothesis")


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_NOT_SOURCES, *_HIDDEN))
    make_sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    output = _run(copy, "-c", make_sdist)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    sdist = folder / f"lipt-{PROJECT['version']}"
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    output += _run(sdist, "-m", "pip", "wheel", "--verbose", *offline, ".")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "wheel")
    assert [line for line in output.splitlines() if "Warning" in line] == []
    return Built(sdist, folder / "wheel")


def _run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _files(folder: Path, pattern: str = "*") -> set[str]:
    paths = (path for path in folder.rglob(pattern) if path.is_file())
    return {str(path.relative_to(folder)) for path in paths}


def test_the_sdist_has_all_tracked_files_but_ci_files(built: Built) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {name for name in tracked if not name.startswith(".git")} <= _files(built.sdist)


def test_wheel_has_every_module_and_typing_marker_and_nothing_beside_them(built: Built) -> None:
    expected = {
        f"{INSTALLED.get(folder, f'lipt/{folder}')}/{name}"
        for folder in SOURCES
        for pattern in ("*.py", "*.pyi", "py.typed")
        for name in _files(ROOT / folder, pattern)
    }
    expected |= {f"lipt/{path.name}" for path in (ROOT / "lipt").glob("*.py")}
    assert expected <= _files(built.wheel)
    dist_info = f"lipt-{PROJECT['version']}.dist-info"
    assert {path.name for path in built.wheel.iterdir()} == {"lipt", dist_info}


def test_the_wheel_has_the_example_files_without_their_generator(built: Built) -> None:
    kept = {path.name: path.read_text("utf-8") for path in (ROOT / "deploy").glob("*.toml")}
    installed = built.wheel / "lipt" / "deploy"
    assert {path.name: path.read_text("utf-8") for path in installed.iterdir()} == kept
    assert {"run.example.toml", "worker.example.toml"} <= kept.keys()


@pytest.mark.parametrize(
    ("package", "name"), [("coordinator", "run.example.toml"), ("worker", "worker.example.toml")]
)
def test_installed_command_prints_its_example_file(built: Built, package: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"lipt.{package}", "--print-config"],
        cwd=built.wheel.parent,
        env={**os.environ, "PYTHONPATH": str(built.wheel), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ((ROOT / "deploy" / name).read_text("utf-8"), "")


def test_the_wheel_s_author_is_the_citation_s(built: Built) -> None:
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    authors = re.findall(r"^  - name: (.*)$", cited, re.MULTILINE)
    (path,) = built.wheel.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text("utf-8"))
    assert metadata.get_all("Author") == authors
    assert f"\nversion: {PROJECT['version']}\n" in cited
    assert f"\nlicense: {PROJECT['license']}\n" in cited
    links = [link.partition(", ")[2] for link in metadata.get_all("Project-URL", [])]
    assert links
    assert [link for link in links if link not in cited] == []


def test_every_extra_is_tried_alone() -> None:
    extras = {"", *PROJECT["optional-dependencies"]} - {"dev", "quick", "test"}
    assert TRIALS.keys() == extras
    assert all((ROOT / path).exists() for trial in TRIALS.values() for path in trial.tests)


def test_oldest_versions_are_the_lower_bounds() -> None:
    pins = (ROOT / "constraints-oldest.txt").read_text("utf-8")
    required = [Requirement(text) for text in PROJECT["dependencies"]]
    for requirement in required:
        (pin,) = re.findall(rf"^{requirement.name}==(.*)$", pins, re.MULTILINE)
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        assert [str(Version(pin))[: len(bound)] for bound in bounds] == bounds, requirement


@pytest.mark.lint
def test_regenerating_the_stubs_changes_nothing(tmp_path: Path) -> None:
    proto = ROOT / "proto"
    protos = sorted(str(path.relative_to(proto)) for path in proto.glob("lipt/v1/*.proto"))
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={proto}"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            *(f"--grpc_python_out={tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"),
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            *protos,
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "lipt" / "v1").iterdir()}
    kept = {path.name: path.read_text() for path in (proto / "lipt" / "v1").glob("*_pb2*")}
    assert len(made) == 4 * len(protos)
    assert kept == made
