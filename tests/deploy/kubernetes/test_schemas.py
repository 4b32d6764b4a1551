"""Every object is one that Kubernetes takes, by its own schemas."""

from __future__ import annotations

import copy
import json

import kubernetes_validate
import pytest

from tests.deploy.kubernetes.rendering import WAYS, Object, objects

pytestmark = pytest.mark.lint

# From the chart's oldest to the newest that there is a schema of.
VERSIONS = [
    f"1.{minor}" for minor in range(29, int(kubernetes_validate.latest_version().split(".")[1]) + 1)
]

# These are other projects', whose schemas are in no package.
FOREIGN = {"cert-manager.io/v1", "keda.sh/v1alpha1"}

_seen: set[str] = set()


@pytest.mark.parametrize("way", WAYS)
def test_every_object_is_valid_in_every_version(way: str) -> None:
    for each in objects(way):
        text = json.dumps(each, sort_keys=True)
        if each["apiVersion"] in FOREIGN or text in _seen:
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
        _seen.add(text)


@pytest.mark.parametrize(
    ("key", "value"), [("replica", 2), ("replicas", "two"), ("template", {"spec": {}})]
)
def test_what_is_misspelt_or_of_another_type_is_not_valid(key: str, value: object) -> None:
    (deployment,) = [each for each in objects("helm/mtls") if each["kind"] == "Deployment"]
    wrong: Object = copy.deepcopy(deployment)
    wrong["spec"][key] = value
    for version in VERSIONS:
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)
