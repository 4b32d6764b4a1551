"""Embedded worker: the service's own worker in a thread, which speaks gRPC as in a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lipt.common.blobs.store import BlobStore
from lipt.common.config.settings import load_settings
from lipt.common.errors import ProcessEndedError
from lipt.common.observability.logs import Events
from lipt.common.process import this_machine
from lipt.common.process.devices import resolve_device
from lipt.common.rpc.channel import open_channel
from lipt.worker.agent import Agent
from lipt.worker.assignment import Worker, WorkerLimits
from lipt.worker.client import CoordinatorClient
from lipt.worker.settings import WorkerSettings

# Raises where there is nobody any more to train learners.
Check = Callable[[], None]


@contextmanager
def worker_thread(
    address: str, folder: Path, *, device: str, allowed_modules: Sequence[str]
) -> Iterator[Check]:
    settings = load_settings(
        WorkerSettings,
        config=None,
        flags={
            "coordinator": address,
            "name": "in-process",
            "device": device,
            "cache_dir": folder,
            "allow_modules": tuple(allowed_modules),
        },
    )
    found = resolve_device(device)
    limits = WorkerLimits(settings, this_machine(), found)
    cache = BlobStore(folder, max_blob_bytes=settings.max_blob_bytes)
    at_work = threading.Lock()
    with open_channel(address) as channel:
        worker = Worker(settings, CoordinatorClient(channel), found, limits, cache, Events())
        carry_out = worker.carry_out

        def noticed(*arguments: Any) -> None:
            with at_work:
                carry_out(*arguments)

        worker.carry_out = noticed  # type: ignore[method-assign]
        agent = Agent(worker)
        failure: list[BaseException] = []

        def work() -> None:
            try:
                agent.run()
            except BaseException as error:  # noqa: BLE001 - raised again by who looks
                failure.append(error)

        def check() -> None:
            for error in failure:
                raise ProcessEndedError(
                    f"the worker of this session has ended: {type(error).__name__}: {error}"
                ) from error

        thread = threading.Thread(target=work, name="lipt-worker", daemon=True)
        thread.start()
        try:
            yield check
        finally:
            agent.stop()
            thread.join()
            with at_work:  # a learner that was given up leaves with its minibatch
                pass
