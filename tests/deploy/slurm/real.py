"""Slurm of two nodes on this machine: munged, slurmctld and two slurmds, which end with the block.

Everything of it is in one folder, nothing of a Slurm that is installed for real is touched.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo")
_NODES = ("n1", "n2")
_CONFIG = """\
ClusterName=lipt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
StateSaveLocation={folder}/ctld
SlurmctldPidFile={folder}/ctld/pid
SlurmctldLogFile={folder}/ctld/log
SlurmdPidFile={folder}/%n/pid
SlurmdLogFile={folder}/%n/log
SlurmdSpoolDir={folder}/%n/spool
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "slurmd has to be started by root"


class Slurm:
    def __init__(self, config: Path) -> None:
        self.environment = os.environ | {"SLURM_CONF": str(config)}

    def run(self, *command: object, **environment: object) -> str:
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment | {name: str(value) for name, value in environment.items()},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=200,
        ).stdout


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    for name in ("munge", "ctld", *(f"{node}/spool" for node in _NODES)):
        (folder / name).mkdir(mode=0o700, parents=True)
    host, config = socket.gethostname(), folder / "slurm.conf"
    config.write_text(_CONFIG.format(folder=folder, host=host, ports=_free_ports(3)))
    cluster = Slurm(config)
    with ExitStack() as daemons:

        def start(*command: str) -> None:
            daemons.enter_context(_daemon(folder, command, cluster.environment))

        munge = folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        start("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files)
        start("slurmctld", "-D", "-f", str(config))
        for node in _NODES:
            start("slurmd", "-D", "-N", node, "-f", str(config))
        # Returns when both nodes have taken a task.
        cluster.run("srun", "--nodes=2", "true")
        try:
            yield cluster
        finally:
            cluster.run("scancel", "--user=root")


@contextmanager
def _daemon(folder: Path, command: tuple[str, ...], environment: dict[str, str]) -> Iterator[None]:
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]
