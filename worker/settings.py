"""Settings of a worker and of a pool: flags over LIPT_* variables over a TOML file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Self

from platformdirs import user_cache_path
from pydantic import ByteSize, DirectoryPath, Field, SecretStr, model_validator

from lipt.common.config.run_config import SettingsGroup
from lipt.common.config.settings import LogFormat, LogLevel, MetricsAddress, TlsKey


class _Connection(SettingsGroup):
    """Settings of a connection to the coordinator."""

    coordinator: str = "127.0.0.1:50051"
    """Address of the coordinator, host:port, as workers reach it."""
    token_file: Path | None = Field(default=None, examples=["/etc/lipt/worker.token"])
    """File with the token for a coordinator that requires one; it is read for every call. Default:
    `token`, and for a coordinator on this machine its local socket."""
    token: SecretStr | None = Field(default=None, examples=["lipt_..."])
    """The token itself, in place of a file: best as the variable LIPT_TOKEN."""
    tls_cert: Path | None = Field(default=None, examples=["/etc/lipt/worker.pem"])
    """PEM file of this worker's certificate, for a coordinator that requires one. It has the role
    worker: the URI lipt:role:worker, or the unit lipt-worker. Renewed files need no restart."""
    tls_key: TlsKey = Field(default=None, examples=["/etc/lipt/worker.key"])
    tls_ca: Path | None = Field(default=None, examples=["/etc/lipt/ca.pem"])
    """PEM file of the authority that signed the coordinator's certificate."""
    log_level: LogLevel = "INFO"


class WorkerSettings(_Connection):
    """All settings of `lipt-worker`."""

    name: str = Field(
        default_factory=lambda: f"{socket.gethostname()[:64]}-{os.getpid()}",
        min_length=1,
        max_length=80,
        examples=["box-3"],
    )
    """Name of this worker in listings. Default: the host's name and the process's number, because a
    host may have several workers."""
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
    """The coordinator's data as this worker opens it, of equal fingerprint, so that it also scores
    examples; with `source`, that source's data alone. Default: it only trains."""
    source: str | None = Field(default=None, min_length=1, max_length=200, examples=["clinic"])
    """The source that `worker_data` is of: the worker trains its learners in runs that name it
    (learners.worker_sources), and sends weights alone. Its token names the source, too."""
    allow_modules: tuple[str, ...] = ()
    """Modules from which this worker imports a model factory when a run names one, and folders of
    causal models that a run may name (`causal:FOLDER`)."""
    max_threads: int | None = Field(default=None, ge=1, examples=[16])
    """Most threads of a learner here; one that needs more is released. Default: four for each core,
    and at least 8."""
    max_memory: ByteSize | None = Field(default=None, ge=2**30, examples=["12GiB"])
    """Most memory of a learner here; one that needs more is released. Default: on a CPU four fifths
    of the machine's or its container's memory; on a CUDA device no limit of its own."""
    max_learners: int | None = Field(default=None, ge=1, examples=[1])
    """Stop after so many learners. Default: run until a signal."""
    max_idle_seconds: float | None = Field(default=None, gt=0.0, examples=[60.0])
    """Stop after so many seconds without a learner. Default: wait without limit."""
    metrics_listen: MetricsAddress = Field(default=None, examples=["127.0.0.1:9465"])
    insecure: bool = False
    """Serve metrics beyond this machine without TLS, for networks that are closed to strangers."""
    stopped_status: int = Field(default=0, ge=0, le=255)
    """Exit status after SIGTERM, SIGINT or SIGHUP. Batch systems take 0 for done; with 143 they
    start another worker."""
    log_format: LogFormat = "text"

    @model_validator(mode="after")
    def _source_has_data(self) -> Self:
        if self.source is not None and self.worker_data is None:
            raise ValueError(
                f"the source {self.source} has no data here. Give --worker-data as well."
            )
        return self


class PoolSettings(_Connection):
    """All settings of `lipt-worker-pool`; files lie in the same place on all workers' machines."""

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
    working_dir: DirectoryPath | None = Field(default=None, examples=["/home/me/project"])
    """Folder with your own modules, which Ray copies to its nodes."""

    @model_validator(mode="after")
    def _ray_settings_require_ray(self) -> Self:
        given = [name for name in ("resources", "working_dir") if getattr(self, name)]
        if given and self.ray is None:
            raise ValueError(f"{given[0]} is for a pool on Ray. Give --ray, or leave it out.")
        return self
