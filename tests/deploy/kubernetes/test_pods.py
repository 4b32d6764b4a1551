"""The pods of the manifests, run as processes: the pages' run, and what ends pods."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import Certificates
from tests.cluster import Cluster
from tests.deploy.kubernetes.pod_processes import Node, Pod, node
from tests.deploy.kubernetes.rendering import objects

LIPT = (sys.executable, "-m", "lipt.trainer.cli")
START = ("run", "start", "--name", "first", "--seed", "0", "--watch")
SUBSET = ("subset", "get", "--strategy", "grand", "--fraction", "0.1", "--out")
DIGEST = r"digest ([0-9a-f]{64})"


class Served:
    """A coordinator's pod with certificates, and a trainer's way to it."""

    def __init__(self, machine: Node, certificates: Certificates, folder: Path) -> None:
        self.machine, self._certificates, self._folder = machine, certificates, folder
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
            "LIPT_TLS_CERT": str(files.cert),
            "LIPT_TLS_KEY": str(files.key),
            "LIPT_TLS_CA": str(files.ca),
        }
        return self.machine.run(*LIPT, *arguments, environment=environment)

    def subset(self) -> str:
        found = re.search(DIGEST, self.lipt(*SUBSET, str(self._folder / "s.npy")))
        assert found
        return found[1]


@contextmanager
def served(folder: Path, way: str) -> Iterator[Served]:
    certificates = Certificates(folder / "certs")
    certificates.make("init", "--host", "lipt-coordinator")
    certificates.make("worker")
    certificates.make("trainer", "alice")
    with node(folder, objects(way)) as machine:
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


def test_pods_come_to_the_plain_run_s_subset_and_go_on_with_their_volume(
    tmp_path: Path, cluster: Cluster
) -> None:
    with served(tmp_path, "helm/mtls") as service:
        worker = service.start_worker("Deployment", "lipt-worker-a")
        service.start_worker("Deployment", "lipt-worker-b")
        service.coordinator.process.wait_for("lipt-coordinator on")
        assert service.machine.probe(service.coordinator, "readinessProbe")
        service.lipt(*START)
        first = service.subset()
        assert first == plain_digest(cluster)
        assert re.search(r"lipt-worker-[ab]\b", service.lipt("run", "show", "first"))
        assert worker.terminate() == 0
        assert service.coordinator.terminate() == 0
        state = tmp_path / "state-lipt-coordinator-0" / "state"
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert state.stat().st_uid == 10001
        assert "is open to other users" not in service.coordinator.process.text()
        assert "Traceback" not in service.coordinator.process.text()
        service.start_coordinator().process.wait_for("lipt-coordinator on")
        assert service.subset() == first


def test_pre_stop_gives_the_learner_back_within_the_grace(tmp_path: Path) -> None:
    with served(tmp_path, "helm/mtls") as service:
        leaving = service.start_worker("Deployment", "lipt-worker-leaving")
        leaving.process.wait_for("joined")
        # So long that only giving it back can end it.
        service.lipt(
            "run", "start", "--num-learners", "1", "--set", "learners.num_steps=100000",
            "--set", "learners.batch_size=64",
        )  # fmt: skip
        leaving.process.wait_for("density")
        leaving.execute(leaving.container["lifecycle"]["preStop"]["exec"]["command"])
        assert leaving.process.process.wait(leaving.grace_seconds) == 0
        assert "gave" in leaving.process.text()
        service.start_worker("Deployment", "lipt-worker-heir").process.wait_for("density")
