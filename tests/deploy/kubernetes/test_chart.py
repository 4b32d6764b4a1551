from __future__ import annotations

import tomllib
from typing import Any

import helm_python
import pytest
import yaml

from lipt.common.access.certificate import role_uri
from lipt.common.access.roles import Role
from tests.deploy.kubernetes.test_objects import CHART, DEPLOY, VALUES, Object, only, rendered


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
def test_value_that_is_misspelt_or_out_of_range_is_refused_by_name(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        rendered(values)


def test_own_settings_win_and_stay_beside_data_and_model() -> None:
    given = documents(
        {
            "coordinator": {
                "data": "features:/data/f.npz",
                "settings": {"run": {"model": "mlp", "learners": {"num_learners": 20}}},
            }
        }
    )
    text = only(given, "ConfigMap", "lipt-coordinator")["data"]["run.toml"]
    assert tomllib.loads(text) == {
        "dataset": {"source": "features:/data/f.npz"},
        "run": {"model": "mlp", "learners": {"num_learners": 20}},
    }


def test_changed_settings_restart_the_coordinator_and_no_worker() -> None:
    one, other = (
        {each["kind"]: each["spec"]["template"] for each in documents(values) if is_workload(each)}
        for values in ({}, {"coordinator": {"model": "resnet18"}})
    )
    assert one["StatefulSet"] != other["StatefulSet"]
    assert one["Deployment"] == other["Deployment"]


def is_workload(each: Object) -> bool:
    return each["kind"] in {"Deployment", "StatefulSet"}


def test_two_releases_in_one_namespace_share_no_name() -> None:
    one, other = (
        {(each["kind"], each["metadata"]["name"]) for each in documents({}, release=release)}
        for release in ("lipt", "pets")
    )
    assert not one & other
    assert ("Service", "pets-lipt-coordinator") in other


def test_certificates_of_cert_manager_are_as_this_product_wants_them() -> None:
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
