import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from lipt.common.access import Role
from lipt.common.access.tls import role_uri

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "lipt"
VALUES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir()))

Object = dict[str, Any]


@cache
def _charted(name: str) -> str:
    values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return "---\n".join(rendered(values))


def objects(name: str) -> list[Object]:
    """The chart's objects with the values `ci/NAME-values.yaml`."""
    return list(yaml.safe_load_all(_charted(name)))


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


def components(given: list[Object]) -> dict[str, Object]:
    return {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template
        for _, template in pods(given)
    }


def of_kind(given: list[Object], *kinds: str) -> Iterator[Object]:
    return (each for each in given if each["kind"] in kinds)


def ports(template: Object) -> dict[str, int]:
    (container,) = template["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def taken_by(selector: Object, given: list[Object]) -> set[str]:
    return {
        name
        for name, template in components(given).items()
        if selected(selector, template["metadata"]["labels"])
    }


def test_selectors_match_their_own_pods(given: list[Object]) -> None:
    for each in of_kind(given, "Deployment", "StatefulSet", "PodDisruptionBudget"):
        own = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert taken_by(each["spec"]["selector"], given) == {own}


def test_services_lead_to_the_coordinator_s_ports(given: list[Object]) -> None:
    coordinator = components(given)["coordinator"]
    for service in of_kind(given, "Service"):
        assert taken_by({"matchLabels": service["spec"]["selector"]}, given) == {"coordinator"}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports(coordinator)[port["targetPort"]]
    stateful = only(given, "StatefulSet", "lipt-coordinator")
    headless = only(given, "Service", stateful["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"


def test_workers_reach_the_coordinator_s_grpc_and_nothing_else_of_lipt(given: list[Object]) -> None:
    numbers = ports(components(given)["coordinator"])
    everybody = only(given, "NetworkPolicy", "lipt")["spec"]
    assert taken_by(everybody["podSelector"], given) == {"coordinator", "worker"}
    assert everybody["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(everybody)

    coordinator = only(given, "NetworkPolicy", "lipt-coordinator")["spec"]
    assert taken_by(coordinator["podSelector"], given) == {"coordinator"}
    assert "egress" not in coordinator
    callers, scrapers = coordinator["ingress"]
    assert callers["ports"] == [{"port": numbers["grpc"]}]
    assert taken_by(callers["from"][0]["podSelector"], given) == {"worker"}
    assert scrapers["ports"] == [{"port": numbers["metrics"]}]
    assert all("namespaceSelector" in each for each in scrapers["from"])

    worker = only(given, "NetworkPolicy", "lipt-worker")["spec"]
    assert taken_by(worker["podSelector"], given) == {"worker"}
    assert "ingress" not in worker
    assert ports(components(given)["worker"]) == {}
    to_coordinator, to_names = worker["egress"]
    assert to_coordinator["ports"] == [{"port": numbers["grpc"]}]
    assert taken_by(to_coordinator["to"][0]["podSelector"], given) == {"coordinator"}
    assert {port["port"] for port in to_names["ports"]} == {53}


def test_mounts_and_volumes_match(given: list[Object]) -> None:
    for maker, template in pods(given):
        spec = template["spec"]
        claims = maker["spec"].get("volumeClaimTemplates", ())
        volumes = [each["name"] for each in spec["volumes"]]
        volumes += [each["metadata"]["name"] for each in claims]
        (container,) = spec["containers"]
        assert sorted(each["name"] for each in container["volumeMounts"]) == sorted(volumes)
        # A file of a subPath is never renewed.
        assert not [each for each in container["volumeMounts"] if "subPath" in each]
        for volume in spec["volumes"]:
            if "configMap" in volume:
                only(given, "ConfigMap", volume["configMap"]["name"])


def test_secrets_are_documented_or_made_by_cert_manager(given: list[Object]) -> None:
    mounted = {
        volume["secret"]["secretName"]
        for _, template in pods(given)
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    assert mounted in (set(), {"lipt-coordinator-tls", "lipt-worker-tls"})
    certificates = list(of_kind(given, "Certificate"))
    made = {each["spec"]["secretName"] for each in certificates}
    issuers = {each["metadata"]["name"] for each in of_kind(given, "Issuer")}
    assert made in (set(), mounted | {"lipt-ca"})
    assert {each["spec"]["issuerRef"]["name"] for each in certificates} <= issuers


# From the chart's oldest to the newest that there is a schema of.
VERSIONS = [
    f"1.{minor}" for minor in range(29, int(kubernetes_validate.latest_version().split(".")[1]) + 1)
]

# These are other projects', whose schemas are in no package.
FOREIGN = {"cert-manager.io/v1", "keda.sh/v1alpha1"}

_seen: set[str] = set()


@pytest.mark.lint
def test_every_object_is_valid_in_every_version(given: list[Object]) -> None:
    for each in given:
        text = json.dumps(each, sort_keys=True)
        if each["apiVersion"] in FOREIGN or text in _seen:
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
        _seen.add(text)


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


def documents(values: dict[str, Any], **how: Any) -> list[Object]:
    return list(yaml.safe_load_all("---\n".join(rendered(values, **how))))


@pytest.mark.lint
@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_finds_nothing(name: str) -> None:
    values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    report = helm_python.lint(CHART, values, strict=True)
    assert report["errors"] == []
    # Of more than an icon there is nothing to say.
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_chart_is_of_this_version() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"worker": {}}, "worker"),
        ({"workers": {"gpu": 1}}, "gpu"),
        ({"workers": {"kind": "DaemonSet"}}, "kind"),
        ({"workers": {"job": {"completions": 0}}}, "completions"),
        ({"tls": {"enabled": "no"}}, "enabled"),
        ({"coordinator": {"data": ""}}, "data"),
    ],
)
def test_a_misspelt_or_invalid_value_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        rendered(values)


def test_own_settings_override_and_extend_defaults() -> None:
    given = documents(
        {
            "coordinator": {
                "data": "features:/data/f.safetensors",
                "settings": {"run": {"model": "mlp", "learners": {"num_learners": 20}}},
            }
        }
    )
    text = only(given, "ConfigMap", "lipt-coordinator")["data"]["run.toml"]
    assert tomllib.loads(text) == {
        "dataset": {"source": "features:/data/f.safetensors"},
        "run": {"model": "mlp", "learners": {"num_learners": 20}},
    }


def test_changed_settings_restart_the_coordinator_and_no_worker() -> None:
    one, other = (
        {each["kind"]: template for each, template in pods(documents(values))}
        for values in ({}, {"coordinator": {"model": "resnet18"}})
    )
    assert one["StatefulSet"] != other["StatefulSet"]
    assert one["Deployment"] == other["Deployment"]


def test_two_releases_in_one_namespace_share_no_name() -> None:
    one, other = (
        {(each["kind"], each["metadata"]["name"]) for each in documents({}, release=release)}
        for release in ("lipt", "pets")
    )
    assert not one & other
    assert ("Service", "pets-lipt-coordinator") in other


def test_cert_manager_s_certificates_fit_this_product() -> None:
    given = documents({"tls": {"certManager": {"enabled": True}}})
    coordinator = only(given, "Certificate", "lipt-coordinator")["spec"]
    worker = only(given, "Certificate", "lipt-worker")["spec"]
    assert {"lipt-coordinator", "lipt-coordinator.lipt.svc", "localhost"} <= set(
        coordinator["dnsNames"]
    )
    assert "server auth" in coordinator["usages"]
    assert "client auth" in worker["usages"]
    assert worker["uris"] == [role_uri(Role.WORKER)]
    assert "uris" not in coordinator
    # gRPC takes no Ed25519.
    keys = [each["spec"]["privateKey"] for each in given if each["kind"] == "Certificate"]
    assert keys == [{"algorithm": "ECDSA", "size": 256}] * 3
