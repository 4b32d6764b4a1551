"""Settings of a worker and of a pool: flags over LIPT_* variables over a TOML file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Self

from platformdirs import user_cache_path
from pydantic import ByteSize, Field, model_validator

from lipt.common.config.run_config import Section
from lipt.common.config.settings import (
    LogFormat,
    LogLevel,
    MetricsAddress,
    TlsKey,
    TokenFile,
    TokenText,
)

# The protocol's limit.
_MAX_NAME_CHARACTERS = 80


def own_name(host: str, process_id: int) -> str:
    """A default worker name, unique among the workers on the host."""
    number = f"-{process_id}"
    return host[: _MAX_NAME_CHARACTERS - len(number)] + number


class WorkerSettings(Section):
    """Everything `lipt-worker` can be told."""

    coordinator: str = "127.0.0.1:50051"
    """Address of the coordinator, host:port."""
    name: str = Field(
        default_factory=lambda: own_name(socket.gethostname(), os.getpid()),
        min_length=1,
        max_length=_MAX_NAME_CHARACTERS,
        examples=["box-3"],
    )
    """Name that this worker is shown under. Default: the host's name and the process's number, as
    one host may have several workers."""
    device: str = "auto"
    """Where learners are trained: `cpu`, `cuda`, `cuda:N`, or `auto` for the first CUDA device if
    there is one."""
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("lipt") / "worker", examples=["/var/cache/lipt"]
    )
    """Directory that keeps initial weights, so that a run's next learner does not fetch them again.
    Default: in the user's cache directory."""
    cache_bytes: int = Field(default=8 * 1024**3, ge=0)
    """Bytes that the cache may hold; the weights in use always stay."""
    max_blob_bytes: int = Field(default=4 * 1024**3, ge=1024)
    """Largest file that is accepted: initial weights, or a shard."""
    worker_data: str | None = Field(default=None, examples=["imagefolder:/mnt/train"])
    """The coordinator's data as this worker sees it, on shared storage, say: it is compared with
    the coordinator's, and passes over it are shared with this worker. Default: it only trains."""
    allow_modules: tuple[str, ...] = ()
    """Modules from which this worker imports a model factory when a run names one."""
    max_threads: int | None = Field(default=None, ge=1, examples=[16])
    """Threads that a learner may train with here; one that asks for more is given back. Default:
    four for each core, and at least 8."""
    max_memory: ByteSize | None = Field(default=None, ge=2**30, examples=["12GiB"])
    """Memory that a learner may take here; one that would need more is given back. Default: on a
    CPU four fifths of the machine's, or its container's; on a CUDA device what it has."""
    max_learners: int | None = Field(default=None, ge=1, examples=[1])
    """Stop after so many learners. Default: go on until told to stop."""
    max_idle_seconds: float | None = Field(default=None, gt=0.0, examples=[60.0])
    """Stop when no learner has come for so many seconds. Default: wait for the next one until told
    to stop."""
    token_file: TokenFile = Field(default=None, examples=["/etc/lipt/worker.token"])
    token: TokenText = Field(default=None, examples=["lipt_..."])
    metrics_listen: MetricsAddress = Field(default=None, examples=["127.0.0.1:9465"])
    insecure: bool = False
    """Show metrics beyond this machine without TLS: only where the network itself keeps strangers
    out."""
    stopped_status: int = Field(default=0, ge=0, le=255)
    """Exit status after SIGTERM or SIGINT. Batch systems take 0 for done: with 143 they give what
    is not done to another worker."""
    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    tls_cert: Path | None = Field(default=None, examples=["/etc/lipt/worker.pem"])
    """PEM file of this worker's certificate, for a coordinator that asks for one; it has the role
    worker: the URI lipt:role:worker, or the unit lipt-worker. New files are used without a
    restart."""
    tls_key: TlsKey = Field(default=None, examples=["/etc/lipt/worker.key"])
    tls_ca: Path | None = Field(default=None, examples=["/etc/lipt/ca.pem"])
    """PEM file of the authority that signed the coordinator's certificate."""


class PoolSettings(Section):
    """Everything `lipt-worker-pool` can be told."""

    coordinator: str = "127.0.0.1:50051"
    """Address of the coordinator, host:port, as the workers reach it."""
    workers: int = Field(default=1, ge=1, le=10_000)
    """Most workers; there are as many as open learners, up to so many."""
    idle_seconds: float = Field(default=60.0, gt=0.0)
    """Seconds without a learner after which a worker leaves."""
    ray: str | None = Field(default=None, examples=["auto"])
    """Ray cluster that places the workers: `auto`, `HOST:6379`, `ray://HOST:10001`, or `local` to
    start one. Default: they run on this machine, without Ray."""
    gpus_per_worker: float = Field(default=0.0, ge=0.0)
    """GPUs for each worker: 0 for the CPU, 1 for one of its own, 0.5 for two workers on one."""
    cpus_per_worker: float = Field(default=1.0, ge=0.0)
    """CPUs that Ray sets aside for each worker."""
    resources: tuple[Annotated[str, Field(pattern=r"^[^=]+=\d+(\.\d+)?$")], ...] = ()
    """Further resource of Ray's nodes that each worker takes, as NAME=AMOUNT."""
    runtime_env: Path | None = Field(default=None, examples=["runtime-env.yaml"])
    """File with the environment that Ray makes on its nodes, as `ray job submit --runtime-env`
    takes it (YAML or JSON): `working_dir: /FOLDER` copies a folder with your own modules."""
    token_file: TokenFile = None
    token: TokenText = None
    tls_cert: Path | None = None
    """PEM file of a certificate with the role worker. This and the next two, like the token's file,
    lie in the same place on every machine that has workers."""
    tls_key: TlsKey = None
    tls_ca: Path | None = None
    """PEM file of the authority that signed the coordinator's certificate."""
    log_level: LogLevel = "INFO"

    @model_validator(mode="after")
    def _what_is_ray_s_comes_with_ray(self) -> Self:
        ray_s = ("resources", "runtime_env")
        given = [name for name in ray_s if getattr(self, name)]
        if given and self.ray is None:
            raise ValueError(f"{given[0]} is for a pool on Ray, and there is no ray. Give --ray.")
        return self
