from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import lipt

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "containers"
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
