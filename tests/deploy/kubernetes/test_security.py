"""What no pod may do: what Kubernetes calls the restricted standard, and a little more."""

from __future__ import annotations

import pytest

from tests.deploy.kubernetes.rendering import Object, objects, only, pods

USER = 10001


# Of the kinds that the restricted standard takes.
VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "secret"}


def test_no_pod_is_root_or_can_become_it(given: list[Object]) -> None:
    templates = [template["spec"] for _, template in pods(given)]
    assert len(templates) == 2
    for spec in templates:
        own = spec["securityContext"]
        assert own["runAsNonRoot"] is True
        assert own["runAsUser"] == own["runAsGroup"] == own["fsGroup"] == USER
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not [port for port in container.get("ports", ()) if "hostPort" in port]


def test_no_pod_knows_of_the_cluster_or_fills_its_node(given: list[Object]) -> None:
    assert not [each for each in given if "Role" in each["kind"]]
    for _, template in pods(given):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        account = only(given, "ServiceAccount", spec["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False
        for volume in spec["volumes"]:
            assert set(volume) <= VOLUMES
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]
            # 0440: its group, which is the pod's, and nobody else.
            assert "secret" not in volume or volume["secret"]["defaultMode"] == 0o440
        for container in spec["containers"]:
            resources = container["resources"]
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources["requests"])
            assert {"memory", "ephemeral-storage"} <= set(resources["limits"])


@pytest.mark.parametrize("name", ["local", "mtls", "gpu", "job", "autoscaled"])
def test_namespace_refuses_what_is_not_restricted(name: str) -> None:
    given = objects(f"kustomize/{name}")
    labels = only(given, "Namespace", "lipt")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    rest = [each for each in given if each["kind"] != "Namespace"]
    assert {each["metadata"].get("namespace") for each in rest} == {"lipt"}
