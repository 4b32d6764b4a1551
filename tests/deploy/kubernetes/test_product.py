import os
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lipt.common.config.settings import load_settings
from lipt.coordinator import cli as coordinator_cli
from lipt.coordinator.instruments import COORDINATOR
from lipt.coordinator.rpc.info import LIVENESS, READINESS
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker import cli as worker_cli
from lipt.worker.settings import WorkerSettings
from tests.deploy.kubernetes.test_objects import DEPLOY, Object, components, only, pods

_UNITS = {"Gi": 2**30, "Mi": 2**20}
_COMMANDS: dict[str, tuple[typer.Typer, Any, str, type[Any]]] = {
    "lipt-coordinator": (coordinator_cli.app, coordinator_cli, "_serve", CoordinatorSettings),
    "lipt-worker": (worker_cli.app, worker_cli, "_work", WorkerSettings),
}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(_read, patch=monkeypatch, folder=tmp_path)


def _read(
    given: list[Object], component: str, *, patch: pytest.MonkeyPatch, folder: Path
) -> tuple[Any, Object]:
    spec = components(given)[component]["spec"]
    (container,) = spec["containers"]
    (command,) = container["command"]
    app, module, function, model = _COMMANDS[command]
    for name in [name for name in os.environ if name.startswith("LIPT_")]:
        patch.delenv(name)
    for variable in container["env"]:
        if variable["name"].startswith("LIPT_"):
            # A name that is no setting's would be passed over without a word.
            assert variable["name"].removeprefix("LIPT_").lower() in model.model_fields
        patch.setenv(variable["name"], variable.get("value", "lipt-worker-0"))
    told: list[Any] = []
    patch.setattr(module, function, lambda *them: told.extend(them))
    result = CliRunner().invoke(app, container["args"])
    assert result.exit_code == 0, result.output
    config, flags = told
    if config is not None:
        config = file_of(given, spec, config, folder)
    return load_settings(model, config=config, flags=flags), spec


def mount_of(spec: Object, path: Path) -> Object:
    (container,) = spec["containers"]
    within = [each for each in container["volumeMounts"] if path.is_relative_to(each["mountPath"])]
    return max(within, key=lambda each: len(each["mountPath"]))


def volume_of(spec: Object, path: Path) -> Object:
    mount = mount_of(spec, path)
    return next((it for it in spec["volumes"] if it["name"] == mount["name"]), mount)


def file_of(given: list[Object], spec: Object, path: Path, folder: Path) -> Path:
    name = volume_of(spec, path)["configMap"]["name"]
    copy = folder / path.name
    copy.write_text(only(given, "ConfigMap", name)["data"][path.name])
    return copy


def test_coordinator_takes_its_flags_and_listens_where_its_ports_and_probes_are(
    given: list[Object], read: Any
) -> None:
    settings, spec = read(given, "coordinator")
    (container,) = spec["containers"]
    assert {port["name"]: f"0.0.0.0:{port['containerPort']}" for port in container["ports"]} == {
        "grpc": settings.listen,
        "health": settings.health_listen,
        "metrics": settings.metrics_listen,
    }
    health = {"port": int(settings.health_listen.rpartition(":")[2])}
    assert container["startupProbe"]["grpc"] == {**health, "service": LIVENESS}
    assert container["livenessProbe"]["grpc"] == {**health, "service": LIVENESS}
    readiness = {"service": READINESS, **container["readinessProbe"]["grpc"]}
    assert readiness == {**health, "service": READINESS}
    annotations = components(given)["coordinator"]["metadata"]["annotations"]
    assert f"0.0.0.0:{annotations['prometheus.io/port']}" == settings.metrics_listen
    scheme = annotations.get("prometheus.io/scheme", "http")
    assert scheme == ("http" if settings.insecure else "https")


def test_coordinator_s_state_is_on_its_volume_in_a_folder_of_its_own(
    given: list[Object], read: Any
) -> None:
    # The volume's own folder is root's, and open to the pod's group: it could not be made private.
    settings, spec = read(given, "coordinator")
    mount = mount_of(spec, settings.state_dir)
    assert settings.state_dir.parent == Path(mount["mountPath"])
    claims = only(given, "StatefulSet", "lipt-coordinator")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == [mount["name"]]


def test_worker_takes_its_flags_and_calls_the_coordinator_s_service(
    given: list[Object], read: Any
) -> None:
    coordinator, _ = read(given, "coordinator")
    settings, spec = read(given, "worker")
    host, _, port = settings.coordinator.partition(":")
    (listening,) = only(given, "Service", host)["spec"]["ports"]
    assert port == str(listening["port"]) == coordinator.listen.rpartition(":")[2]
    room = volume_of(spec, settings.cache_dir)["emptyDir"]["sizeLimit"]
    assert settings.cache_bytes < int(room[:-2]) * _UNITS[room[-2:]]
    assert settings.metrics_listen is None
    limits = spec["containers"][0]["resources"]["limits"]
    assert (settings.device == "cuda") == ("nvidia.com/gpu" in limits)
    assert spec["containers"][0]["image"].endswith("-cuda") == (settings.device == "cuda")


def test_both_sides_have_certificates_or_neither_has(given: list[Object], read: Any) -> None:
    coordinator, _ = read(given, "coordinator")
    for component in ("coordinator", "worker"):
        settings, spec = read(given, component)
        files = [settings.tls_cert, settings.tls_key, settings.tls_ca]
        if coordinator.insecure:
            assert files == [None] * 3
            continue
        # The names that cert-manager gives, and the page's commands.
        assert [path.name for path in files] == ["tls.crt", "tls.key", "ca.crt"]
        for path in files:
            assert volume_of(spec, path)["secret"]["secretName"] == f"lipt-{component}-tls"
            assert path.parent == Path(mount_of(spec, path)["mountPath"])


def test_a_job_has_a_worker_per_learner(given: list[Object], read: Any) -> None:
    coordinator, _ = read(given, "coordinator")
    settings, _ = read(given, "worker")
    for job in (each for each in given if each["kind"] == "Job"):
        planned = job["spec"]["completions"] * settings.max_learners
        assert planned == coordinator.run.learners.num_learners
        failed = job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
        # An evicted pod's 0 would count as a share that is done.
        assert settings.stopped_status not in (0, *failed)


def test_images_are_of_this_version(given: list[Object]) -> None:
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    for _, template in pods(given):
        image = template["spec"]["containers"][0]["image"]
        own = {f"lipt/lipt:{version}", f"lipt/lipt:{version}-cuda"}
        assert image in own or image.startswith("registry.example/")


def test_autoscaling_uses_existing_metrics(given: list[Object]) -> None:
    served = {instrument.name for instrument in COORDINATOR}
    for scaled in (each for each in given if each["kind"] == "ScaledObject"):
        query = scaled["spec"]["triggers"][0]["metadata"]["query"]
        for name in re.findall(r"lipt_\w+", query):
            assert name in served
