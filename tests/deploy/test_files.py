"""Deployment files that are no Kubernetes objects: examples, containers, systemd units."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import lipt
from deploy.generate import example_files
from lipt.common.config.knobs import sections
from lipt.common.config.settings import load_settings
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer.main_training import Recipe
from lipt.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MODELS = [CoordinatorSettings, WorkerSettings, Recipe]


def test_example_files_are_those_that_make_generate_writes() -> None:
    kept = {path.name: path.read_text("utf-8") for path in DEPLOY.glob("*.example.toml")}
    assert kept == example_files(), "run: make generate"


@pytest.mark.parametrize(
    ("model", "file", "needed"),
    [
        (CoordinatorSettings, "run", {"dataset": {"source": "digits"}}),
        (WorkerSettings, "worker", {}),
    ],
)
def test_example_shows_the_defaults(model: Any, file: str, needed: dict[str, Any]) -> None:
    shown = load_settings(model, config=DEPLOY / f"{file}.example.toml", flags={})
    assert shown == load_settings(model, config=None, flags=needed)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_is_described_in_one_or_two_lines(model: type[BaseModel]) -> None:
    knobs = [knob for section in sections(model) for knob in section.knobs]
    wrong = [
        knob.name
        for knob in knobs
        if not (
            knob.description.endswith(".") and 1 <= len(textwrap.wrap(knob.description, 98)) <= 2
        )
    ]
    assert wrong == []
    assert len(knobs) > 10


FOLDER = DEPLOY / "containers"
CONTAINERFILE, COMPOSE = FOLDER / "Containerfile", FOLDER / "compose.yaml"
BIN = Path(sys.executable).parent
OURS = ("coordinator", "worker")


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


@pytest.mark.lint
def test_hadolint_finds_nothing() -> None:
    subprocess.run([BIN / "hadolint", CONTAINERFILE], check=True)


@pytest.mark.lint
def test_compose_files_are_valid() -> None:
    schema = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    files = sorted(FOLDER.glob("compose*.yaml"))
    assert len(files) == 2
    subprocess.run([*schema, *files], check=True, stdout=subprocess.DEVNULL)


def test_image_has_the_version_of_its_content() -> None:
    labelled = re.search(r'image\.version="([^"]+)"', CONTAINERFILE.read_text())
    assert labelled is not None
    assert labelled[1] == lipt.__version__


@pytest.mark.parametrize("service", OURS)
def test_the_service_can_write_only_its_state(service: str, composed: dict[str, Any]) -> None:
    settings = composed["services"][service]
    assert settings["image"] == f"lipt/lipt:{lipt.__version__}"
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]


def test_containers_are_reachable_only_from_this_machine(composed: dict[str, Any]) -> None:
    ports = [port for one in composed["services"].values() for port in one.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_and_grafana_start_only_when_asked_for(composed: dict[str, Any]) -> None:
    asked = {name for name, one in composed["services"].items() if "profiles" in one}
    assert asked == {"prometheus", "grafana"}


def test_the_container_context_has_the_installed_packages() -> None:
    ignore = ROOT / ".containerignore"
    assert (ROOT / ".dockerignore").read_text() == ignore.read_text()
    taken = set(re.findall(r"^!([\w.]+)", ignore.read_text(), re.MULTILINE))
    rooms = {path.resolve() for path in (ROOT / "lipt").iterdir() if path.is_symlink()}
    assert {"lipt", *(room.relative_to(ROOT).parts[0] for room in rooms)} <= taken
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= taken


UNITS = sorted((DEPLOY / "systemd").iterdir())
# The exposure that `systemd-analyze security` may find, times ten.
THRESHOLD = 30

analyzed = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def test_there_is_a_unit_for_each_service() -> None:
    assert [unit.name for unit in UNITS] == ["lipt-coordinator.service", "lipt-worker@.service"]


@analyzed
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    # As after an installation into /opt/lipt, which need not be here.
    here.write_text(unit.read_text().replace("/opt/lipt/bin", str(Path(sys.executable).parent)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True, check=False
    )
    # Of other units that the machine has it says more.
    said = [line for line in done.stderr.splitlines() if "lipt" in line]
    assert (done.returncode, said) == (0, [])


@analyzed
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_rates_the_exposure_low(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={THRESHOLD}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
