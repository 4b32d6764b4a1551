"""Embedded workers: who trains the learners of an embedded coordinator.

In this process it is the service's own worker in a thread, one learner after another; else they
are processes, which need no more than a model's name. Both speak gRPC with the coordinator, as
workers of a cluster do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lipt.common.config.settings import load_settings
from lipt.common.errors import ProcessEndedError
from lipt.common.observability.logs import Events
from lipt.common.process.devices import resolve_device
from lipt.common.process.machine import this_machine
from lipt.common.rpc.channel import open_channel
from lipt.worker.agent import Runner, assemble
from lipt.worker.client import Assignment
from lipt.worker.limits import WorkerLimits
from lipt.worker.settings import WorkerSettings

# Raises where there is nobody any more to train learners.
Check = Callable[[], None]


@contextmanager
def worker_thread(
    address: str, folder: Path, *, device: str, allowed_modules: Sequence[str]
) -> Iterator[Check]:
    """A worker in a thread during the block; at its end the learner in hand is given up.

    Args:
        address: of the coordinator.
        folder: for the worker's cache.
        device: what to train on.
        allowed_modules: modules that model factories may be imported from.

    Raises:
        ConfigError: the device does not exist.
    """
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
    limits = WorkerLimits(settings, this_machine(), found, allowed_modules=allowed_modules)
    at_work = threading.Lock()
    with open_channel(address) as channel:
        agent = assemble(
            settings, channel, found, limits, Events(), around=partial(_Noticed, at_work=at_work)
        )
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


class _Noticed:
    """A runner of which one can tell whether it is at work."""

    def __init__(self, runner: Runner, at_work: threading.Lock) -> None:
        self._run = runner.run
        self._at_work = at_work

    def run(self, worker_id: str, assignment: Assignment) -> None:
        """Carry the assignment out."""
        with self._at_work:
            self._run(worker_id, assignment)
