"""The worker's own settings."""

from __future__ import annotations

import socket
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import Field

from lipt.common.config.settings import LayeredSettings


class WorkerSettings(LayeredSettings):
    """Everything `lipt-worker` can be told."""

    coordinator: str = "127.0.0.1:50051"
    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=80)
    device: str = "auto"
    # Initial weights by digest; a learner of the same run does not fetch them again.
    cache_dir: Path = Field(default_factory=lambda: user_cache_path("lipt") / "worker")
    # What the cache may hold; the weights in use always stay.
    cache_bytes: int = Field(default=8 * 1024**3, ge=0)
    max_blob_bytes: int = Field(default=4 * 1024**3, ge=1024)
    # Modules from which this worker agrees to import model factories.
    allow_modules: tuple[str, ...] = ()
    # Stop after so many learners; None goes on.
    max_learners: int | None = Field(default=None, ge=1)
    # Where /metrics is served, with the same PEM files; None: nowhere.
    metrics_listen: str | None = None
    # Whether that may be beyond this machine without TLS.
    insecure: bool = False
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    # PEM files; certificate and key are what an mTLS coordinator asks for.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
