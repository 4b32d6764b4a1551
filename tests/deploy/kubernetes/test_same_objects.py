"""The chart and the overlays are two ways to the same objects."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest

from tests.deploy.kubernetes.rendering import OVERLAYS, Object, objects

# What says only who made an object.
_WHOSE = {"app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_chart_and_overlay_come_to_the_same(name: str) -> None:
    built = plain(objects(f"kustomize/{name}"))
    charted = plain(objects(f"helm/{name}"))
    assert built.keys() == charted.keys()
    for key, each in built.items():
        assert each == charted[key], key


def plain(given: list[Object]) -> dict[tuple[str, str], Any]:
    """By kind and name, without what differs for a reason, and in an order of its own."""
    found = {}
    for each in copy.deepcopy(given):
        if each["kind"] == "Namespace":  # Helm is told it
            continue
        meta = each["metadata"]
        meta.pop("namespace", None)
        meta["labels"] = {key: it for key, it in meta["labels"].items() if key not in _WHOSE}
        if each["kind"] == "ConfigMap":
            meta["name"] = "config"  # one of the two ends it in a digest
            each["data"] = {key: tomllib.loads(text) for key, text in each["data"].items()}
        found[each["kind"], meta["name"]] = _plain(each)
    return found


def _plain(value: Any) -> Any:
    match value:
        case {"configMap": _, "name": name}:
            return {"configMap": "its name is looked at elsewhere", "name": name}
        case dict():
            # Its change restarts the pods: a digest in the name does so for the overlays.
            kept = {key: _plain(it) for key, it in value.items() if key != "checksum/config"}
            return {key: it for key, it in kept.items() if it not in ({}, [])}
        case list() if all(isinstance(it, dict) and "name" in it for it in value):
            return sorted((_plain(it) for it in value), key=lambda it: it["name"])
        case list():
            return [_plain(it) for it in value]
        case _:
            return value
