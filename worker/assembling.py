"""Assembling: a worker's agent, put together from its settings and a channel to its coordinator."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import torch

from lipt.common.blobs.store import BlobStore
from lipt.common.observability.logs import Events
from lipt.worker.agent import Agent, Runner
from lipt.worker.assignment import AssignmentRunner
from lipt.worker.client import CoordinatorClient, Leased, ScoringAssignment
from lipt.worker.exchange import Exchange
from lipt.worker.lease import LeaseKeeper
from lipt.worker.limits import WorkerLimits
from lipt.worker.metering import Metering
from lipt.worker.scoring import Scorer, ScoringRunner
from lipt.worker.settings import WorkerSettings


def assemble(
    settings: WorkerSettings,
    channel: grpc.Channel,
    device: torch.device,
    limits: WorkerLimits,
    events: Events,
    *,
    metering: Metering | None = None,
    around: Callable[[Runner], Runner] = lambda runner: runner,
) -> Agent:
    """An agent that has not begun.

    Args:
        settings: the worker's.
        channel: to its coordinator.
        device: what to train on.
        limits: what this worker takes on.
        events: where retries are counted.
        metering: where everything else is measured.
        around: what is put around the runner of each learner.
    """
    metering = metering or Metering()
    client = CoordinatorClient(channel)
    cache = BlobStore(settings.cache_dir, max_blob_bytes=settings.max_blob_bytes)

    scorer = Scorer(settings, device)

    def make_runner(
        assignment: Leased, lease: LeaseKeeper, should_stop: Callable[[], bool]
    ) -> Runner:
        exchange = Exchange(
            client,
            cache,
            should_stop,
            cache_bytes=settings.cache_bytes,
            events=events,
            metering=metering,
        )
        if isinstance(assignment, ScoringAssignment):
            require = limits.require_threads
            return around(ScoringRunner(client, exchange, scorer, should_stop, metering, require))
        runner = AssignmentRunner(
            client,
            exchange,
            lease,
            should_stop,
            device=device,
            metering=metering,
            allowed_modules=settings.allow_modules,
            require_fitting=limits.require,
        )
        return around(runner)

    return Agent(settings, client, make_runner, device, events, metering=metering)
