"""Coordinator settings; the section `[run]` holds what a run takes where its request is silent."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from platformdirs import user_state_path
from pydantic import ByteSize, Field, model_validator

from lipt.common.config.run_config import RunConfig, Section
from lipt.common.config.settings import (
    LogFormat,
    LogLevel,
    MetricsAddress,
    TlsKey,
)
from lipt.common.imports import modules_of
from lipt.common.process.machine import Machine


class DatasetSettings(Section):
    """The data set that this coordinator serves."""

    source: str = Field(min_length=1, examples=["digits"])
    """The data: `digits`, `cifar10:DIR`, `cifar100:DIR`, `imagefolder:DIR`, `parquet:PATH` or
    `package.module:factory`."""
    image_size: int | None = Field(default=None, ge=1, le=4096, examples=[224])
    """Pixels a side that images are scaled to. Default: their own if at most 64, else 224."""
    max_corrupt: int = Field(default=0, ge=0, le=10_000)
    """Broken image files that are left out and named; with more, the data is refused. Above 0,
    every image is decoded at the first opening."""


class LeaseSettings(Section):
    """A lease: the time for which a learner is one worker's own."""

    duration_seconds: float = Field(default=30.0, gt=0.0, le=3600.0)
    """A worker that is silent for longer than this loses its learner to another."""


class PeerLimitSettings(Section):
    """Limits of one peer: a certificate's name, or else a connection. 0 is no limit."""

    calls_per_second: float = Field(default=200.0, ge=0.0)
    """Calls of one peer a second, as many at once; what comes a second too early is refused."""
    registrations_per_minute: int = Field(default=600, ge=0)
    """Workers that one peer may register a minute, those of ten seconds at once."""
    max_calls: int = Field(default=1024, ge=0)
    """One peer's calls under way, those of workers that wait for work included."""
    max_streams: int = Field(default=64, ge=0)
    """One peer's streams: transfers, subsets, diagnoses and watching."""


class LimitSettings(Section):
    """Limits of a request. A run's needs are estimated before it begins."""

    max_blob_bytes: int = Field(default=4 * 1024**3, ge=1024)
    """Largest file that is accepted: uploaded weights, or a learner's result."""
    max_concurrent_calls: int = Field(default=4096, ge=8)
    """Calls under way in all, those of workers that wait for work included."""
    compute_memory: ByteSize | None = Field(default=None, ge=2**30, examples=["16GiB"])
    """Memory that the compute process may take: runs that plan more are refused, and on a CPU the
    system refuses it more. Default: four fifths of this machine's, or of its container's."""
    compute_threads: int | None = Field(default=None, ge=1, examples=[16])
    """Threads that a run may ask of the compute process. Default: four a core, at least 8."""
    compute_images: int = Field(default=100_000_000, ge=1)
    """Images that theta*'s training, or the soup's evaluations, may put through the model."""
    warm_up_epochs: float = Field(default=200.0, gt=0.0)
    """Epochs that `pretraining=epochs:N` of a subset may take, over all models of its warm-up."""
    worker_memory: ByteSize = Field(default=ByteSize(80 * 2**30), ge=2**30)
    """Memory that a learner may take on a worker, its device's included."""
    worker_threads: int = Field(default=256, ge=1)
    """Threads that a run may ask of a worker."""
    worker_images: int = Field(default=1_000_000_000, ge=1)
    """Images that a learner may put through its model, over all its attempts."""
    run_disk: ByteSize | None = Field(default=None, ge=1, examples=["50GiB"])
    """Room that a run's files may take in the state directory. Default: what is free there."""
    per_peer: PeerLimitSettings = PeerLimitSettings()


class StorageSettings(Section):
    """How much of what peers upload is stored, and how long that and ended runs are kept."""

    max_bytes: int | None = Field(default=None, ge=1, examples=[100 * 1024**3])
    """Bytes of all uploads that no run, subset or diagnosis names, declared ones included.
    Default: a third of the disk that is free at the start."""
    max_bytes_per_peer: int | None = Field(default=None, ge=1, examples=[50 * 1024**3])
    """Of these, one peer's. Default: half of all."""
    max_unfinished: int = Field(default=512, ge=1)
    """Uploads that may have begun and not ended, in all."""
    max_unfinished_per_peer: int = Field(default=32, ge=1)
    """Of these, one peer's."""
    unfinished_hours: float = Field(default=6.0, gt=0.0)
    """An upload that got no byte for so long is removed."""
    unused_hours: float = Field(default=24.0, gt=0.0)
    """Blobs that no record needs and no caller has used for so long are removed."""
    keep_days: float | None = Field(default=None, gt=0.0, examples=[90])
    """How long after its end a run is removed with its subsets, unless something is computed for it
    or it was asked for in the last hour. Default: never."""
    collect_every_seconds: float = Field(default=900.0, gt=0.0, le=86_400.0)
    """How often the coordinator looks for what is to be removed; first after so long."""


def compute_memory_bytes(limits: LimitSettings, machine: Machine) -> int:
    return machine.max_memory_bytes if limits.compute_memory is None else limits.compute_memory


def compute_threads(limits: LimitSettings, machine: Machine) -> int:
    return machine.max_threads if limits.compute_threads is None else limits.compute_threads


class ScoringWorkers(StrEnum):
    """Which workers that have the data share passes over it."""

    # Of the same device, processor and versions: bits are identical.
    SAME = "same"
    # The last digits may vary between passes.
    ANY = "any"
    NONE = "none"


class ComputeSettings(Section):
    """Computations for trainers: the light queue has one process, the heavy queue another."""

    max_waiting: int = Field(default=256, ge=1)
    """Requests that may wait for each process; more are refused, and told when to come again."""
    max_waiting_per_caller: int = Field(default=32, ge=1)
    """Of these one caller's: those of one certificate's name, or else of one connection."""
    scoring_workers: ScoringWorkers = ScoringWorkers.SAME
    """Which workers with `--worker-data` share passes over the data: those of the `same` device,
    processor and versions, with the same bits; `any`; or `none`."""
    scoring_range: int = Field(default=4096, ge=1)
    """Examples that such a worker is given at a time, up to whole batches."""
    verified_share: float = Field(default=0.05, gt=0.0, le=1.0)
    """Random share of the examples that such workers score which is scored here again: n forged
    ones go unnoticed with a probability of (1 - share)^n."""


class CoordinatorSettings(Section):
    """Everything `lipt-coordinator` can be told."""

    listen: str = "127.0.0.1:50051"
    """Address to serve on, host:port. Beyond this machine it needs TLS, or `insecure`."""
    state_dir: Path = Field(
        default_factory=lambda: user_state_path("lipt"), examples=["/var/lib/lipt"]
    )
    """Directory of runs, blobs and subsets. Default: the user's state directory."""
    address_file: Path | None = Field(default=None, examples=["/run/lipt/address"])
    """File that the address is written to once it is served."""
    insecure: bool = False
    """Serve all who reach the address, with every role, without TLS: in a closed network only."""
    require_token: bool = False
    """With `insecure`: serve only who shows a token (`lipt token create`)."""
    tls_cert: Path | None = Field(default=None, examples=["/etc/lipt/coordinator.pem"])
    """PEM file of this server's certificate. New files are used without a restart."""
    tls_key: TlsKey = Field(default=None, examples=["/etc/lipt/coordinator.key"])
    tls_ca: Path | None = Field(default=None, examples=["/etc/lipt/ca.pem"])
    """PEM file of the authority that must have signed the certificates of workers and trainers
    (mTLS), and gives them their roles. Without it, everybody is asked for a token."""
    metrics_listen: MetricsAddress = Field(default=None, examples=["127.0.0.1:9464"])
    health_listen: str | None = Field(default=None, examples=["0.0.0.0:50052"])
    """Address of gRPC's health alone, without TLS, for probes also before the data is open."""
    dashboard_listen: str | None = Field(default=None, examples=["127.0.0.1:50080"])
    """Address of the page, host:port; https with TLS files. Needs the extra `dashboard`."""
    dashboard_url: str | None = Field(
        default=None, pattern=r"^https?://[^/?#]+$", examples=["https://lipt.example.org"]
    )
    """Where browsers reach the page behind a reverse proxy."""
    device: str = "auto"
    """Where soup and signals are computed: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA if any."""
    backbone: str | None = Field(default=None, examples=["torchvision:resnet18"])
    """A trained network for the proxies `ridge:backbone` and `auto`: `torchvision:NAME` with
    weights from torch hub's folder or downloaded, or `torchvision:NAME@FILE` with a file's."""
    allow_modules: tuple[str, ...] = ()
    """Modules in which a run may name a model factory (`package.module:factory`)."""
    drain_seconds: float = Field(default=20.0, ge=0.0)
    """After SIGTERM, how long calls under way may take."""
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
                f"{lease:g}: no learner of a worker that died could be given to another in time. "
                f"Set it to 0, which waits for all learners, or to {lease:g} or more."
            )
        return self


def with_own_modules(settings: CoordinatorSettings) -> CoordinatorSettings:
    """Also allow the modules of factories that this process's own flags name."""
    own = (settings.dataset.source, settings.run.model)
    modules = tuple(module for spec in own for module in modules_of(spec))
    return settings.model_copy(update={"allow_modules": (*settings.allow_modules, *modules)})
