"""Worker settings: flags over LIPT_* variables over a TOML file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import ByteSize, Field

from lipt.common.config.settings import (
    LayeredSettings,
    LogFormat,
    LogLevel,
    MetricsAddress,
    TlsKey,
    TokenFile,
    TokenText,
)

# As the contract takes of a name.
_MAX_NAME_CHARACTERS = 80


def own_name(host: str, process_id: int) -> str:
    """What a worker is called that nobody has named; differs from its neighbours' on the host."""
    number = f"-{process_id}"
    return host[: _MAX_NAME_CHARACTERS - len(number)] + number


class WorkerSettings(LayeredSettings):
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
