"""Pool settings: flags over LIPT_* variables."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from lipt.common.config.settings import (
    LayeredSettings,
    LogLevel,
    TlsKey,
    TokenFile,
    TokenText,
)


class PoolSettings(LayeredSettings):
    """Everything `lipt-worker-pool` can be told."""

    coordinator: str = "127.0.0.1:50051"
    """Address of the coordinator, host:port, as the workers reach it."""
    workers: int = Field(default=1, ge=1, le=10_000)
    """Most workers; there are as many as open learners, up to so many."""
    min_workers: int = Field(default=0, ge=0)
    """Workers that stay when nothing is to do."""
    idle_seconds: float = Field(default=60.0, gt=0.0)
    """Seconds without a learner after which a worker leaves."""
    ray: str | None = Field(default=None, examples=["auto"])
    """Ray cluster that places the workers: `auto`, `HOST:6379`, `ray://HOST:10001`, or `local` to
    start one. Default: they run on this machine, without Ray."""
    gpus_per_worker: float = Field(default=0.0, ge=0.0)
    """GPUs for each worker: 0 for the CPU, 1 for one of its own, 0.5 for two workers on one."""
    cpus_per_worker: float = Field(default=1.0, ge=0.0)
    """CPUs that Ray sets aside for each worker."""
    resources: tuple[str, ...] = ()
    """Further resource of Ray's nodes that each worker takes, as NAME=AMOUNT."""
    runtime_env: Path | None = Field(default=None, examples=["runtime-env.yaml"])
    """File with the environment that Ray makes on its nodes, as `ray job submit --runtime-env`
    takes it (YAML or JSON)."""
    working_dir: Path | None = Field(default=None, examples=["."])
    """Folder that Ray copies to its nodes, with your own modules in it."""
    token_file: TokenFile = None
    token: TokenText = None
    tls_cert: Path | None = None
    """PEM file of a certificate with the role worker. This and the next two, like the token's file,
    lie in the same place on every machine that has workers."""
    tls_key: TlsKey = None
    tls_ca: Path | None = None
    """PEM file of the authority that signed the coordinator's certificate."""
    log_level: LogLevel = "INFO"

    @property
    def where(self) -> str:
        """Where the workers run, for people."""
        return "on this machine" if self.ray is None else f"on Ray at {self.ray}"

    @model_validator(mode="after")
    def _fewest_are_no_more_than_most(self) -> Self:
        if self.min_workers > self.workers:
            raise ValueError(
                f"min_workers {self.min_workers} is more than workers {self.workers}, which is the "
                "most that there may be. Raise workers."
            )
        return self

    @model_validator(mode="after")
    def _what_is_ray_s_comes_with_ray(self) -> Self:
        ray_s = {
            "resources": self.resources,
            "runtime_env": self.runtime_env,
            "working_dir": self.working_dir,
        }
        given = [name for name, value in ray_s.items() if value]
        if given and self.ray is None:
            raise ValueError(f"{given[0]} is for a pool on Ray, and there is no ray. Give --ray.")
        return self
