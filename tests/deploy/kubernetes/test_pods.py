"""The pods of the manifests, run as processes: the pages' run, and what ends pods."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.cluster import Cluster
from tests.deploy.kubernetes.pod_processes import Node, Pod, node
from tests.deploy.kubernetes.rendering import objects

pytestmark = pytest.mark.slow

LIPT = (sys.executable, "-m", "lipt.trainer.cli")
START = ("run", "start", "--name", "first", "--seed", "0", "--watch")
SUBSET = ("subset", "get", "--strategy", "grand", "--fraction", "0.1", "--out")
DIGEST = r"digest ([0-9a-f]{64})"


class Served:
    """A coordinator's pod with certificates, and a trainer's way to it."""

    def __init__(self, machine: Node, certificates: Certificates, folder: Path) -> None:
        self.machine, self.folder, self._certificates = machine, folder, certificates
        self.secrets = {
            f"lipt-{name}-tls": {"tls.crt": files.cert, "tls.key": files.key, "ca.crt": files.ca}
            for name in ("coordinator", "worker")
            for files in [certificates.files(name)]
        }
        self.coordinator = self.start_coordinator()

    def start_coordinator(self) -> Pod:
        pod = self._start("StatefulSet", "lipt-coordinator", "lipt-coordinator-0")
        pod.process.wait_for("health on")
        assert self.machine.probe(pod, "startupProbe")
        return pod

    def start_worker(self, kind: str, name: str) -> Pod:
        return self._start(kind, "lipt-worker", name)

    def _start(self, kind: str, name: str, pod: str) -> Pod:
        secrets = {
            secret: {key: path for key, path in files.items() if path is not None}
            for secret, files in self.secrets.items()
        }
        return self.machine.start(kind, name, secrets, pod)

    def lipt(self, *arguments: str) -> str:
        """`lipt ARGUMENTS` as alice, through a forwarded port."""
        files = self._certificates.files("alice")
        environment = {
            "LIPT_COORDINATOR": "localhost:50051",
            "LIPT_WAIT": "60",
            "LIPT_TLS_CERT": str(files.cert),
            "LIPT_TLS_KEY": str(files.key),
            "LIPT_TLS_CA": str(files.ca),
        }
        return self.machine.run(*LIPT, *arguments, environment=environment)

    def subset(self) -> str:
        found = re.search(DIGEST, self.lipt(*SUBSET, str(self.folder / "s.npy")))
        assert found
        return found[1]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pods")
    certificates = Certificates(folder / "certs")
    certificates.make("init", "--host", "lipt-coordinator")
    certificates.make("worker")
    certificates.make("trainer", "alice")
    with node(folder, objects("helm/mtls")) as machine:
        yield Served(machine, certificates, folder)


def plain_digest(cluster: Cluster) -> str:
    """The same run's by two processes that know nothing of Kubernetes."""
    cluster.start_coordinator()
    cluster.start_worker("one")
    started = cluster.lipt(*START)
    assert started.returncode == 0, started.stdout + started.stderr
    found = re.search(DIGEST, cluster.lipt(*SUBSET, str(cluster.directory / "s.npy")).stdout)
    assert found
    return found[1]


@pytest.mark.timeout(900)  # three coordinators are started, one after the other
def test_pods_come_to_the_plain_run_s_subset_and_go_on_with_their_volume(
    service: Served, cluster: Cluster
) -> None:
    workers = [service.start_worker("Deployment", f"lipt-worker-{letter}") for letter in ("a", "b")]
    coordinator = service.coordinator
    coordinator.process.wait_for("lipt-coordinator on")
    assert service.machine.probe(coordinator, "readinessProbe")
    service.lipt(*START)
    digest = service.subset()
    assert digest == plain_digest(cluster)
    assert re.search(r"lipt-worker-[ab]\b", service.lipt("run", "show", "first"))
    assert [worker.terminate() for worker in workers] == [0, 0]
    assert coordinator.terminate() == 0
    assert "Traceback" not in coordinator.process.text()
    assert "is open to other users" not in coordinator.process.text()
    state = service.folder / "state-lipt-coordinator-0" / "state"
    assert (stat.S_IMODE(state.stat().st_mode), state.stat().st_uid) == (0o700, 10001)
    service.start_coordinator().process.wait_for("lipt-coordinator on")
    assert service.subset() == digest


def test_pre_stop_gives_the_learner_back_within_the_grace(service: Served) -> None:
    leaving = service.start_worker("Deployment", "lipt-worker-leaving")
    leaving.process.wait_for("joined")
    # So long that only giving it back can end it.
    steps = ("--set", "learners.num_steps=100000", "--set", "learners.batch_size=64")
    service.lipt("run", "start", "--name", "long", "--num-learners", "1", *steps)
    leaving.process.wait_for("density")
    leaving.execute(leaving.container["lifecycle"]["preStop"]["exec"]["command"])
    assert leaving.process.process.wait(leaving.grace_seconds) == 0
    assert "gave" in leaving.process.text()
    service.start_worker("Deployment", "lipt-worker-heir").process.wait_for("density")
