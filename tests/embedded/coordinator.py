"""Embedded coordinator: the service itself, in a thread with an event loop of its own.

It listens on a port of loopback that the system chooses, takes calls as any other does, and
computes in this process. It installs no signal handler and configures no log.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, suppress

from lipt.coordinator.app import open_app
from lipt.coordinator.rpc.workers import unless
from lipt.coordinator.server import serving
from lipt.coordinator.settings import CoordinatorSettings
from tests.embedded.compute import ThreadQueue


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
