"""Session: the whole service for one data set, in this process, for the time of a `with` block.

with Session(data, model) as session:
    session.pretrain()
    subset = session.client.subset(strategy="craig", fraction=0.1)

Coordinator and workers know data and models by names: here the functions `data` and `model`.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from lipt.common.config.run_config import merge
from lipt.common.config.settings import load_settings
from lipt.common.imports import modules_of
from lipt.coordinator.settings import CoordinatorSettings
from lipt.models.registry import default_model
from lipt.pretraining import open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.views import RunView
from tests.embedded import Check, EmbeddedCoordinator, worker_thread

MODULE = "tests.session"
_LOOK_SECONDS = 0.1
# Nobody waits for a coordinator of this very process to come back.
_RECONNECT_SECONDS = 1.0


# The objects of the one session that a process has at a time.
_given: dict[str, Any] = {}


def data() -> Any:
    return _given["data"]


def model(*, num_classes: int) -> Any:
    return _given["model"](num_classes=num_classes)


class Session(AbstractContextManager["Session"]):
    client: Client

    def __init__(
        self,
        data: Any,
        model: str | Callable[..., nn.Module] | None = None,
        *,
        device: str = "auto",
        state_dir: Path | None = None,
    ) -> None:
        self.data = open_dataset(data)
        self._device = device
        self._state_dir = state_dir
        self._given_model = None if isinstance(model, str) else model
        named = model or default_model(self.data.inputs)
        self._model = named if isinstance(named, str) else f"{MODULE}:model"
        self._allowed_modules = (MODULE, *modules_of(self._model))
        self._stack = ExitStack()
        self._check: Check | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_as_it_was())
            folder = tempfile.TemporaryDirectory(prefix="lipt-", ignore_cleanup_errors=True)
            self._folder = Path(stack.enter_context(folder))
            _given.update(data=self.data, model=self._given_model)
            stack.callback(_given.clear)
            address = stack.enter_context(EmbeddedCoordinator(self._settings()))
            client = Client(address, reconnect_seconds=_RECONNECT_SECONDS)
            self.client = stack.enter_context(client)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def pretrain(self, overrides: Mapping[str, Any] | None = None, *, seed: int = 0) -> RunView:
        settings: dict[str, Any] = {"model": self._model, "seed": seed}
        # The workers, from the first run on: a diagnosis needs none.
        if self._check is None:
            address, folder, allowed = self.client.address, self._folder, self._allowed_modules
            self._check = self._stack.enter_context(
                worker_thread(
                    address, folder / "workers", device=self._device, allowed_modules=allowed
                )
            )
        run = self.client.start_run(merge(settings, dict(overrides or {})))
        pause = threading.Event()
        while run.goes_on:
            self._check()
            pause.wait(_LOOK_SECONDS)
            run = self.client.run(run.run_id)
        return self.client.wait(run.run_id)

    def _settings(self) -> CoordinatorSettings:
        return load_settings(
            CoordinatorSettings,
            config=None,
            flags={
                "dataset": {"source": f"{MODULE}:data"},
                "run": {"model": self._model},
                "listen": "127.0.0.1:0",
                "state_dir": self._state_dir or self._folder / "state",
                "device": self._device,
                "allow_modules": self._allowed_modules,
                "drain_seconds": 1.0,
            },
        )


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Give the process back as it was: torch's threads and generator, where modules are found."""
    threads, generator, path = torch.get_num_threads(), torch.get_rng_state(), list(sys.path)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(generator)
        sys.path[:] = path
