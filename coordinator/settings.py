"""The coordinator's own settings; `[run]` holds what a run takes where its request is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from platformdirs import user_state_path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lipt.common.config.run_config import RunConfig
from lipt.common.config.settings import LayeredSettings
from lipt.common.imports.factory import is_factory_spec

# What looks like `module:factory` and is not.
_SCHEMES = ("torchvision", "cifar10", "cifar100", "imagefolder", "parquet")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DatasetSettings(_Section):
    """The data set that this coordinator serves."""

    source: str = Field(min_length=1)
    # None: the images' own size where they share one of at most 64 px, else 224.
    image_size: int | None = Field(default=None, ge=1, le=4096)


class LeaseSettings(_Section):
    """How long a worker may stay silent before its assignment goes to another."""

    duration_seconds: float = Field(default=30.0, gt=0.0, le=3600.0)


class LimitSettings(_Section):
    """What a peer may ask this process to hold."""

    max_blob_bytes: int = Field(default=4 * 1024**3, ge=1024)
    max_concurrent_calls: int = Field(default=4096, ge=8)


class CoordinatorSettings(LayeredSettings):
    """Everything `lipt-coordinator` can be told."""

    listen: str = "127.0.0.1:50051"
    state_dir: Path = Field(default_factory=lambda: user_state_path("lipt"))
    address_file: Path | None = None
    # Listening beyond this machine without TLS has to be asked for.
    insecure: bool = False
    # PEM files; `tls_ca` makes the server ask its peers for certificates (mTLS).
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    # Where /metrics is served, with the same PEM files; None: nowhere.
    metrics_listen: str | None = None
    device: str = "auto"
    # Modules from which a run may name a model factory.
    allow_modules: tuple[str, ...] = ()
    drain_seconds: float = Field(default=20.0, ge=0.0)
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    dataset: DatasetSettings
    lease: LeaseSettings = LeaseSettings()
    limits: LimitSettings = LimitSettings()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _deadline_outlasts_a_lease(self) -> Self:
        deadline, lease = self.run.learners.deadline_seconds, self.lease.duration_seconds
        if 0.0 < deadline < lease:
            raise ValueError(
                f"run.learners.deadline_seconds = {deadline:g} is below lease.duration_seconds = "
                f"{lease:g}: no learner of a worker that died could be given to another in time. "
                f"Set it to 0, which waits for all learners, or to {lease:g} or more."
            )
        return self


def with_own_modules(settings: CoordinatorSettings) -> CoordinatorSettings:
    """The settings with the modules allowed that this process's own flags name factories in."""
    own = (settings.dataset.source, settings.run.model)
    modules = tuple(
        spec.partition(":")[0]
        for spec in own
        if is_factory_spec(spec) and spec.partition(":")[0] not in _SCHEMES
    )
    return settings.model_copy(update={"allow_modules": (*settings.allow_modules, *modules)})
