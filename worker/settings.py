"""Worker settings: flags over LIPT_* variables over a TOML file."""

from __future__ import annotations

import socket
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import Field

from lipt.common.config.settings import LayeredSettings, LogLevel, MetricsAddress, TlsKey


class WorkerSettings(LayeredSettings):
    """Everything `lipt-worker` can be told."""

    coordinator: str = Field(
        default="127.0.0.1:50051", description="Address of the coordinator, host:port."
    )
    name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=80,
        description="Name that this worker is shown under. Default: the host's name.",
        examples=["box-3"],
    )
    device: str = Field(
        default="auto",
        description="Where learners are trained: `cpu`, `cuda`, `cuda:N`, or `auto` for the first "
        "CUDA device if there is one.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("lipt") / "worker",
        description="Directory that keeps initial weights, so that a run's next learner does not "
        "fetch them again. Default: in the user's cache directory.",
        examples=["/var/cache/lipt"],
    )
    cache_bytes: int = Field(
        default=8 * 1024**3,
        ge=0,
        description="Bytes that the cache may hold; the weights in use always stay.",
    )
    max_blob_bytes: int = Field(
        default=4 * 1024**3,
        ge=1024,
        description="Largest file that is accepted: initial weights, or a shard.",
    )
    allow_modules: tuple[str, ...] = Field(
        default=(),
        description="Modules from which this worker imports a model factory when a run names one.",
    )
    max_learners: int | None = Field(
        default=None,
        ge=1,
        description="Stop after so many learners. Default: go on until told to stop.",
        examples=[1],
    )
    metrics_listen: MetricsAddress = Field(default=None, examples=["127.0.0.1:9465"])
    insecure: bool = Field(
        default=False,
        description="Show metrics beyond this machine without TLS: only where the network itself "
        "keeps strangers out.",
    )
    log_level: LogLevel = "INFO"
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file of this worker's certificate, for a coordinator that asks for one.",
        examples=["/etc/lipt/worker.pem"],
    )
    tls_key: TlsKey = Field(default=None, examples=["/etc/lipt/worker.key"])
    tls_ca: Path | None = Field(
        default=None,
        description="PEM file of the authority that signed the coordinator's certificate.",
        examples=["/etc/lipt/ca.pem"],
    )
