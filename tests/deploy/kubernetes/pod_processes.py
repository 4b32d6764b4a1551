"""Pods as processes of this machine: command, flags, variables, volumes and user of the manifests.

A stand-in for a cluster, with what of it matters to the product: process 1 in a namespace of its
own, a user without a name, a root file system that cannot be written, no capabilities, Secrets and
ConfigMaps behind turning links, a volume whose folder is root's, a network of its own in which
names of Services are known. It schedules nothing, restarts nothing, and heeds no NetworkPolicy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from tests.cluster import LoggedProcess
from tests.deploy.kubernetes.rendering import Object, only, pods

_REPOSITORY = Path(__file__).parents[3]
_SETUP = Path(__file__).with_name("pod_root.py")
_PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
_TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip")
_BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
_PROBE = """
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as channel:
    request = health_pb2.HealthCheckRequest(service=sys.argv[2])
    health = health_pb2_grpc.HealthStub(channel)
    print(health.Check(request, wait_for_ready=True, timeout=60).status)
"""


class Pod:
    """One pod of one container that runs."""

    def __init__(self, name: str, spec: Object, process: LoggedProcess, grace: float) -> None:
        self.name, self.spec, self.process = name, spec, process
        self.grace_seconds = grace

    @property
    def container(self) -> Object:
        (container,) = self.spec["containers"]
        return dict(container)

    def first(self) -> int:
        """The number that the container's process 1 has outside."""
        (number,) = self.process.children()
        return number

    def execute(self, command: Sequence[str]) -> None:
        """As `kubectl exec`, or a hook."""
        inside = ["nsenter", f"--target={self.first()}", "--mount", "--pid", "--root", "--wd"]
        user = str(self.spec["securityContext"]["runAsUser"])
        subprocess.run(
            [*inside, f"--setuid={user}", f"--setgid={user}", *command],
            env={"PATH": _PATH},
            check=False,  # it may end with the pod that it ends
        )

    def terminate(self) -> int:
        """SIGTERM to process 1; its exit status within the grace."""
        os.kill(self.first(), signal.SIGTERM)
        return self.process.process.wait(self.grace_seconds)


class Node:
    """A machine with a network of its own, on which pods run."""

    def __init__(self, folder: Path, holder: int, given: list[Object]) -> None:
        self._folder, self._holder, self._given = folder, holder, given
        self._numbers = count()
        self._pods: list[Pod] = []

    def start(
        self, kind: str, name: str, secrets: Mapping[str, Mapping[str, Path]], pod: str
    ) -> Pod:
        """The pod that an object makes.

        Args:
            kind: the object's.
            name: the object's.
            secrets: of each Secret the file that each key holds.
            pod: what it is called; the same one has the same claims.
        """
        maker = only(self._given, kind, name)
        (template,) = [template for each, template in pods([maker])]
        spec = template["spec"]
        (container,) = spec["containers"]
        folder = self._folder / f"{pod}-{next(self._numbers)}"
        (folder / "root").mkdir(parents=True)
        group = spec["securityContext"]["fsGroup"]
        sources = {
            volume["name"]: self._volume(volume, secrets, folder, group)
            for volume in spec["volumes"]
        }
        for claim in maker["spec"].get("volumeClaimTemplates", ()):
            claimed = claim["metadata"]["name"]
            sources[claimed] = _claimed(self._folder / f"{claimed}-{pod}", group)
        told = {
            "root": str(folder / "root"),
            "hostname": pod,
            "hosts": "127.0.0.1 localhost\n"
            + "".join(
                f"127.0.0.1 {each['metadata']['name']}\n"
                for each in self._given
                if each["kind"] == "Service"
            ),
            "volumes": sorted(
                (
                    {
                        "path": mount["mountPath"],
                        "source": str(sources[mount["name"]]),
                        "readOnly": mount.get("readOnly", False),
                    }
                    for mount in container["volumeMounts"]
                ),
                key=lambda volume: volume["path"],
            ),
            "needed": [str(_REPOSITORY), sys.prefix, sys.base_prefix],
            "user": spec["securityContext"]["runAsUser"],
            "group": group,
            "command": [*container["command"], *container["args"]],
            "env": {"PATH": _PATH, "OMP_NUM_THREADS": "2", **_environment(container, pod)},
        }
        inside = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        command = [*self._network(), *inside, sys.executable, str(_SETUP), json.dumps(told)]
        process = LoggedProcess(["-c", _BECOME, *command], folder / "log", os.environ)
        started = Pod(pod, spec, process, spec["terminationGracePeriodSeconds"])
        self._pods.append(started)
        return started

    def run(self, *command: str, environment: Mapping[str, str]) -> str:
        """What a command says that has this network, as through `kubectl port-forward`."""
        done = subprocess.run(
            [*self._network(), *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def probe(self, pod: Pod, kind: str) -> bool:
        """What the kubelet hears that asks a pod's `kind`; waits until it listens."""
        asked = pod.container[kind]["grpc"]
        answer = self.run(
            sys.executable, "-c", _PROBE, str(asked["port"]), asked.get("service", ""),
            environment={},
        )  # fmt: skip
        return int(answer) == health_pb2.HealthCheckResponse.SERVING

    def _network(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holder}/ns/net"]

    def _volume(
        self, volume: Object, secrets: Mapping[str, Mapping[str, Path]], folder: Path, group: int
    ) -> Path:
        source = folder / volume["name"]
        if "emptyDir" in volume:
            source.mkdir()
            source.chmod(0o2777)
            os.chown(source, 0, group)
            return source
        if "secret" in volume:
            mode = volume["secret"]["defaultMode"]
            files = {
                key: path.read_bytes()
                for key, path in secrets[volume["secret"]["secretName"]].items()
            }
        else:
            mode = 0o644
            data = only(self._given, "ConfigMap", volume["configMap"]["name"])["data"]
            files = {key: text.encode() for key, text in data.items()}
        write_atomically(source, files, mode, group)
        return source

    def stop(self) -> None:
        for pod in self._pods:
            pod.process.stop(signal.SIGKILL)


def write_atomically(folder: Path, files: Mapping[str, bytes], mode: int, group: int) -> None:
    """As the kubelet writes a Secret, and renews it: one link is turned."""
    version = folder / f"..{len(list(folder.glob('..*')))}"
    version.mkdir(parents=True)
    for name, content in files.items():
        (version / name).write_bytes(content)
        (version / name).chmod(mode)
        os.chown(version / name, 0, group)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").rename(folder / "..data")
    for path in (folder, version):
        path.chmod(0o755)


@contextmanager
def node(folder: Path, given: list[Object]) -> Iterator[Node]:
    """A node for the objects; skips where this user may not make namespaces."""
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces like a container's")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"there is no {missing[0]}, which makes what a container has")
    namespaces = ["--mount", "--net", "--pid", "--uts", "--fork"]
    trial = ["unshare", *namespaces, "mount", "-t", "tmpfs", "none", "/mnt"]
    allowed = subprocess.run(trial, capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"this machine lets nobody make namespaces: {allowed.stderr.strip()}")
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        made = Node(folder, holder.pid, given)
        try:
            yield made
        finally:
            made.stop()
            holder.kill()


def _claimed(source: Path, group: int) -> Path:
    """A volume as a fresh disk is: its folder is root's, with the pod's group let in."""
    if not source.exists():
        source.mkdir()
        os.chown(source, 0, group)
        source.chmod(0o2775)
        (source / "lost+found").mkdir(mode=0o700)
    return source


def _environment(container: Object, pod: str) -> dict[str, Any]:
    fields = {"metadata.name": pod}
    return {
        each["name"]: each["value"]
        if "value" in each
        else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
