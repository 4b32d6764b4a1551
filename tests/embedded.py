"""Embedded: the service's own coordinator and workers, in threads of this process.

The coordinator has an event loop of its own, and computes in this process. It listens on a port of
loopback that the system chooses, and takes calls as any other does. It installs no signal handler
and configures no log. The worker speaks gRPC as in a cluster.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from lipt.common.blobs.store import BlobStore
from lipt.common.config.settings import load_settings
from lipt.common.errors import ComputeError, ProcessEndedError
from lipt.common.observability.logs import Events
from lipt.common.process import this_machine
from lipt.common.process.devices import resolve_device
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.app import open_app
from lipt.coordinator.compute.context import Context, DataDescription, Report
from lipt.coordinator.compute.messages import DroppedError, Job, JobEnded, News
from lipt.coordinator.compute.process import ComputeProcess, OpenContext, carry_out, outcome_of
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.rpc.workers import unless
from lipt.coordinator.server import serving
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker.agent import Agent
from lipt.worker.assignment import Worker, WorkerLimits
from lipt.worker.client import CoordinatorClient
from lipt.worker.settings import WorkerSettings

ResultT = TypeVar("ResultT")


class ThreadQueue(ComputeQueue):
    """A test's coordinator computes beside it: nothing is started, and nothing is imported anew."""

    def open_light(self, known: DataDescription) -> None:
        pass

    def _process(self, open_context: OpenContext, name: str) -> ComputeProcess:
        thread = ComputeThread(open_context, memory_bytes=self.memory_limit_bytes, name=name)
        return cast("ComputeProcess", cast("Any", thread))


class ComputeThread:
    """What `ComputeProcess` is, in a thread: a dropped job ends where it next reports."""

    pid = None

    def __init__(
        self, open_context: OpenContext, *, memory_bytes: int, name: str = "lipt-compute"
    ) -> None:
        self._open_context = open_context
        self._memory_bytes = memory_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._context: Context | None = None
        self._dropped = self._stopped = False
        self._tell: Callable[[News], object] = lambda _: None

    async def run(self, job: Job[ResultT], on_news: Report = lambda _: None) -> ResultT:
        loop = asyncio.get_running_loop()
        self._tell = lambda news: loop.call_soon_threadsafe(on_news, news)
        try:
            if self._stopped:
                raise ComputeError("nothing is computed any more: the coordinator is stopping.")
            if self._dropped:  # before it began
                raise DroppedError
            working = loop.run_in_executor(self._thread, self._carry_out, job)
            try:
                return outcome_of(await asyncio.shield(working), job)
            except asyncio.CancelledError:
                # A thread cannot be ended from outside, so a stop waits until it has noticed.
                self._dropped = True
                await asyncio.wait({working})
                raise
        finally:
            self._dropped = False

    def drop(self) -> None:
        self._dropped = True

    def stop(self) -> None:
        self._stopped = self._dropped = True
        self._thread.shutdown()

    def _carry_out(self, job: Job[ResultT]) -> JobEnded:
        if self._context is None:
            self._context = self._open_context(self._report)
        return carry_out(job, self._context, self._memory_bytes)

    def _report(self, news: News) -> None:
        if self._dropped:
            raise DroppedError
        self._tell(news)


class EmbeddedCoordinator(AbstractContextManager[str]):
    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._asked = asyncio.Event()
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="lipt-coordinator", daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        try:
            return self._address.result()
        except BaseException:  # Ctrl-C, too, while the data is read
            self._stop()
            raise

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with suppress(RuntimeError):  # it has ended by itself, with its loop
            self._loop.call_soon_threadsafe(self._asked.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again where the address is awaited
            if not self._address.done():
                self._address.set_exception(error)

    async def _serve(self) -> None:
        opening = open_app(self._settings, make_compute=ThreadQueue)
        async with AsyncExitStack() as stack:
            app = await unless(self._asked, stack.enter_async_context(opening))
            if app is not None:
                address = await stack.enter_async_context(serving(app))
                self._address.set_result(address)
                await self._asked.wait()


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
