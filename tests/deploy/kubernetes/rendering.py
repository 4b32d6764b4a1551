"""The objects that each overlay and each values file of the chart come to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "lipt"
OVERLAYS = tuple(sorted(path.name for path in (DEPLOY / "kubernetes" / "overlays").iterdir()))
VALUES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir()))
WAYS = (*(f"kustomize/{name}" for name in OVERLAYS), *(f"helm/{name}" for name in VALUES))

Object = dict[str, Any]


def objects(way: str) -> list[Object]:
    """Those of `kustomize/OVERLAY` or `helm/VALUES`; skips where there is no kubectl."""
    tool, _, name = way.partition("/")
    return list(yaml.safe_load_all(_built(name) if tool == "kustomize" else charted(name)))


@cache
def _built(overlay: str) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl, whose kustomize builds overlays")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / "overlays" / overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def charted(name: str) -> str:
    """The chart with a values file of its folder ci, as release `lipt` in the namespace `lipt`."""
    values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return "---\n".join(rendered(values))


def rendered(values: Mapping[str, Any], *, release: str = "lipt") -> list[str]:
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=release, namespace="lipt")
    return [text for path, text in files.items() if path.endswith(".yaml") and text.strip()]


def pods(given: list[Object]) -> Iterator[tuple[Object, Object]]:
    for each in given:
        if "template" in each.get("spec", {}):
            yield each, each["spec"]["template"]


def only(given: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in given if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()
