"""Coordinator settings; the section `[run]` has the defaults of runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from platformdirs import user_state_path
from pydantic import ByteSize, Field, model_validator

from lipt.common.config.run_config import RunConfig, SettingsGroup
from lipt.common.config.settings import LogFormat, LogLevel, MetricsAddress, TlsKey
from lipt.common.imports import modules_of
from lipt.common.process import Machine


class DatasetSettings(SettingsGroup):
    """The data set that this coordinator serves."""

    source: str = Field(min_length=1, examples=["digits"])
    """The data: `digits`, `cifar10:DIR`, `cifar100:DIR`, `imagefolder:DIR`, `parquet:PATH` or
    `package.module:factory`."""
    image_size: int | None = Field(default=None, ge=1, le=4096, examples=[224])
    """Pixels a side that images are scaled to. Default: their own if at most 64, else 224, or 64 if
    the coordinator has no GPU."""
    max_corrupt: int = Field(default=0, ge=0, le=10_000)
    """Broken image files that are excluded and named; with more, the data is refused. Above 0,
    every image is decoded at the first opening."""


class LeaseSettings(SettingsGroup):
    """Leases: for this time a learner belongs to one worker."""

    duration_seconds: float = Field(default=30.0, gt=0.0, le=3600.0)
    """A worker that is silent for longer loses its learner to another."""


class PeerLimitSettings(SettingsGroup):
    """Limits of one peer: a certificate's name, or else a connection. 0 is no limit."""

    calls_per_second: float = Field(default=200.0, ge=0.0)
    """Calls per second, and as many at once; a call that comes over a second early is refused."""
    registrations_per_minute: int = Field(default=600, ge=0)
    """Registrations of workers per minute, and those of ten seconds at once."""
    max_calls: int = Field(default=1024, ge=0)
    """Concurrent calls, with those of workers that wait for work."""
    max_streams: int = Field(default=64, ge=0)
    """Concurrent streams: transfers, subsets, diagnoses and watching."""


class LimitSettings(SettingsGroup):
    """Limits of a request. A run's needs are estimated before it begins."""

    max_blob_bytes: int = Field(default=4 * 1024**3, ge=1024)
    """Largest accepted file: uploaded weights, or a learner's result."""
    max_concurrent_calls: int = Field(default=4096, ge=8)
    """Maximum number of concurrent calls, with those of workers that wait for work."""
    compute_memory: ByteSize | None = Field(default=None, ge=2**30, examples=["16GiB"])
    """Memory of the compute process: a run that needs more is refused, and on a CPU the system
    enforces it. Default: four fifths of the machine's or container's memory."""
    compute_threads: int | None = Field(default=None, ge=1, examples=[16])
    """Threads of the compute process for a run. Default: four per core, at least 8."""
    compute_images: int = Field(default=100_000_000, ge=1)
    """Images in theta*'s training, or in the soup's evaluations."""
    warm_up_epochs: float = Field(default=200.0, gt=0.0)
    """Epochs of a subset's warm-up (`pretraining=epochs:N`), over all its models."""
    worker_memory: ByteSize = Field(default=ByteSize(80 * 2**30), ge=2**30)
    """Memory of a learner on a worker, with its device's."""
    worker_threads: int = Field(default=256, ge=1)
    """Threads of a learner on a worker."""
    worker_images: int = Field(default=1_000_000_000, ge=1)
    """Images in a learner's training, over all its attempts."""
    run_disk: ByteSize | None = Field(default=None, ge=1, examples=["50GiB"])
    """Size of a run's files in the state directory. Default: the free space there."""
    per_peer: PeerLimitSettings = PeerLimitSettings()


class StorageSettings(SettingsGroup):
    """Limits of uploads, and retention of uploads and ended runs."""

    max_bytes: int | None = Field(default=None, ge=1, examples=[100 * 1024**3])
    """Bytes of all uploads that no run, subset or diagnosis names, declared ones included.
    Default: a third of the disk that is free at the start."""
    max_bytes_per_peer: int | None = Field(default=None, ge=1, examples=[50 * 1024**3])
    """Limit of one peer's uploads. Default: half of `max_bytes`."""
    max_unfinished: int = Field(default=512, ge=1)
    """Maximum number of unfinished uploads."""
    max_unfinished_per_peer: int = Field(default=32, ge=1)
    """Maximum number of one peer's unfinished uploads."""
    unfinished_hours: float = Field(default=6.0, gt=0.0)
    """A partial upload is removed after this time without a new byte."""
    unused_hours: float = Field(default=24.0, gt=0.0)
    """Blobs that no record needs and no caller has used for so long are removed."""
    keep_days: float | None = Field(default=None, gt=0.0, examples=[90])
    """Days after its end at which a run is removed with its subsets, unless it is in use: a running
    job, or a request in the last hour. Default: never."""
    collect_every_seconds: float = Field(default=900.0, gt=0.0, le=86_400.0)
    """Seconds between two removals; the first comes after as long."""


def compute_memory_bytes(limits: LimitSettings, machine: Machine) -> int:
    return machine.max_memory_bytes if limits.compute_memory is None else limits.compute_memory


class ScoringWorkers(StrEnum):
    """Which workers that have the data share passes over it."""

    # Of the same device, processor and versions: bits are identical.
    SAME = "same"
    # The last digits may vary between passes.
    ANY = "any"
    NONE = "none"


class ComputeSettings(SettingsGroup):
    """Computations for trainers: the light queue has one process, the heavy queue another."""

    max_waiting: int = Field(default=256, ge=1)
    """Requests that may wait in each queue; more are refused, with a time to ask again."""
    max_waiting_per_caller: int = Field(default=32, ge=1)
    """Maximum of these for one caller: a certificate's name, or else a connection."""
    scoring_workers: ScoringWorkers = ScoringWorkers.SAME
    """Workers with `--worker-data` that share passes over the data: those of the `same` device,
    processor and versions (the same bits), `any`, or `none`."""
    scoring_range: int = Field(default=4096, ge=1)
    """Examples per range that such a worker scores, rounded up to whole batches. Fewer data are the
    coordinator's alone."""
    verified_share: float = Field(default=0.05, gt=0.0, le=1.0)
    """Random share of such workers' examples that is scored here again: n forged ones go unnoticed
    with probability (1 - share)^n."""


class CoordinatorSettings(SettingsGroup):
    """All settings of `lipt-coordinator`."""

    listen: str = "127.0.0.1:50051"
    """Address to serve on, host:port. Beyond this machine it needs TLS, or `insecure`."""
    state_dir: Path = Field(
        default_factory=lambda: user_state_path("lipt"), examples=["/var/lib/lipt"]
    )
    """Directory of runs, blobs and subsets. Default: the user's state directory."""
    address_file: Path | None = Field(default=None, examples=["/run/lipt/address"])
    """File for the address, written once it is served."""
    insecure: bool = False
    """Serve every caller, with every role and without TLS: in a closed network only."""
    require_token: bool = False
    """With `insecure`: serve only callers with a token (`lipt token create`)."""
    tls_cert: Path | None = Field(default=None, examples=["/etc/lipt/coordinator.pem"])
    """PEM file of this server's certificate. New files are used without a restart."""
    tls_key: TlsKey = Field(default=None, examples=["/etc/lipt/coordinator.key"])
    tls_ca: Path | None = Field(default=None, examples=["/etc/lipt/ca.pem"])
    """PEM file of the authority that signs the certificates of workers and trainers, with their
    roles (mTLS). Without it, every caller needs a token."""
    metrics_listen: MetricsAddress = Field(default=None, examples=["127.0.0.1:9464"])
    health_listen: str | None = Field(default=None, examples=["0.0.0.0:50052"])
    """Address of gRPC's health service alone, without TLS, also before the data is open."""
    dashboard_listen: str | None = Field(default=None, examples=["127.0.0.1:50080"])
    """Address of the page, host:port; https with TLS files. Needs the extra `dashboard`."""
    dashboard_url: str | None = Field(
        default=None, pattern=r"^https?://[^/?#]+$", examples=["https://lipt.example.org"]
    )
    """The page's address for browsers, behind a reverse proxy."""
    device: str = "auto"
    """Device of soup and signals: `cpu`, `cuda`, `cuda:N`, or `auto` (CUDA if available)."""
    backbone: str | None = Field(default=None, examples=["torchvision:resnet18"])
    """A trained network for `ridge:backbone` and `auto`: `torchvision:NAME` (torch hub's weights),
    `torchvision:NAME@FILE`, or `efficientnet_lite0` (of the extra `backbone`)."""
    allow_modules: tuple[str, ...] = ()
    """Modules in which a run may name a model factory (`package.module:factory`), and folders of
    which it may name a causal model (`causal:FOLDER`)."""
    drain_seconds: float = Field(default=20.0, ge=0.0)
    """Seconds for the calls under way after SIGTERM."""
    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    dataset: DatasetSettings
    lease: LeaseSettings = LeaseSettings()
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    compute: ComputeSettings = ComputeSettings()
    run: RunConfig = RunConfig()
    """Defaults of runs: the paper's figures, if it gives any."""

    @model_validator(mode="after")
    def _deadline_outlasts_a_lease(self) -> Self:
        deadline, lease = self.run.learners.deadline_seconds, self.lease.duration_seconds
        if 0.0 < deadline < lease:
            raise ValueError(
                f"run.learners.deadline_seconds = {deadline:g} is below lease.duration_seconds = "
                f"{lease:g}: no learner could move to another worker in time. "
                f"Set it to 0, which waits for all learners, or to {lease:g} or more."
            )
        return self


def with_own_modules(settings: CoordinatorSettings) -> CoordinatorSettings:
    """Also allow the modules of factories that this process's own flags name."""
    own = (settings.dataset.source, settings.run.model)
    modules = tuple(module for spec in own for module in modules_of(spec))
    return settings.model_copy(update={"allow_modules": (*settings.allow_modules, *modules)})
