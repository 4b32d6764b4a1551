from __future__ import annotations

import json

import kubernetes_validate
import pytest

from tests.deploy.kubernetes.rendering import Object

pytestmark = pytest.mark.lint

# From the chart's oldest to the newest that there is a schema of.
VERSIONS = [
    f"1.{minor}" for minor in range(29, int(kubernetes_validate.latest_version().split(".")[1]) + 1)
]

# These are other projects', whose schemas are in no package.
FOREIGN = {"cert-manager.io/v1", "keda.sh/v1alpha1"}

_seen: set[str] = set()


def test_every_object_is_valid_in_every_version(given: list[Object]) -> None:
    for each in given:
        text = json.dumps(each, sort_keys=True)
        if each["apiVersion"] in FOREIGN or text in _seen:
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
        _seen.add(text)
