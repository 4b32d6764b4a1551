"""Session: the whole service for one data set, in this process, for the time of a `with` block.

    with Session(data, model) as session:
        session.pretrain()
        subset = session.client.subset(strategy="craig", fraction=0.1)

`session.client` is the client that a cluster's coordinator would have. When the block ends, by an
error or Ctrl-C as well, its threads, processes and files are gone, and torch is as it was.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from lipt.common.config.settings import load_settings
from lipt.common.config.values import merge
from lipt.common.errors import ConfigError
from lipt.common.imports import is_factory_spec
from lipt.common.states import LearnerState, RunState
from lipt.common.weights.files import pack
from lipt.common.weights.specs import copy_to_cpu
from lipt.coordinator.settings import CoordinatorSettings
from lipt.data import open_dataset
from lipt.pretraining import default_model
from lipt.progress import Show
from lipt.trainer.cli.display.runs import state_line
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView, RunView
from tests.embedded.coordinator import EmbeddedCoordinator
from tests.embedded.workers import Check, worker_thread
from tests.given import MODULE, giving

_LOOK_SECONDS = 0.1
# Nobody waits for a coordinator of this very process to come back.
_RECONNECT_SECONDS = 1.0
# What is global in a process is one session's at a time: torch's threads, its generators.
_only_one = threading.Lock()


class Session(AbstractContextManager["Session"]):
    """A coordinator on the caller's data, and workers for it.

    Args:
        data: in any form that `lipt.open_dataset` takes.
        model: a built-in name, `package.module:factory`, a function of `num_classes`, or an
            `nn.Module`, whose weights are what learners begin with; it is copied, and stays as
            it is. None takes one that suits the kind of data.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        device: "cpu", "cuda", "cuda:N", or "auto".
        state_dir: a folder that keeps runs and subsets; None takes a temporary one.
        allow_modules: modules that a run of this session may name other models of.

    Attributes:
        data: what is chosen from, opened.
        model: the name of what judges it.
        allowed_modules: what names may import.

    Raises:
        ConfigError: the model cannot be had by processes; or, on entering, another session is
            open in this process.
        DataError: there is no data, or what is there cannot be used.
    """

    def __init__(
        self,
        data: Any,
        model: str | nn.Module | Callable[..., nn.Module] | None = None,
        *,
        image_size: int | None = None,
        device: str = "auto",
        state_dir: str | Path | None = None,
        allow_modules: Sequence[str] = (),
    ) -> None:
        self.data = open_dataset(data, image_size=image_size, allow_modules=allow_modules)
        self._device = device
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._initial = model if isinstance(model, nn.Module) else None
        self._given_model = None if model is None or isinstance(model, str) else _maker(model)
        named = default_model(self.data.inputs) if model is None else ""
        if isinstance(model, str):
            named = model
        self.model = named or f"{MODULE}:model"
        own = [named.partition(":")[0]] if is_factory_spec(named) else []
        self.allowed_modules = (MODULE, *own, *allow_modules)
        self._stack = ExitStack()
        self._client: Client | None = None
        self._check: Check | None = None
        self._folder = Path()

    @property
    def client(self) -> Client:
        """Calls to the coordinator.

        Raises:
            ConfigError: outside of the session's block.
        """
        if self._client is None:
            raise ConfigError("the session is not open. Use it as: with Session(...) as s:")
        return self._client

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_the_only_one())
            stack.enter_context(_as_it_was())
            folder = tempfile.TemporaryDirectory(prefix="lipt-", ignore_cleanup_errors=True)
            self._folder = Path(stack.enter_context(folder))
            model = self._given_model
            stack.enter_context(giving(data=self.data, model=model))
            address = stack.enter_context(EmbeddedCoordinator(self._settings()))
            self._client = Client(address, reconnect_seconds=_RECONNECT_SECONDS)
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def pretrain(
        self,
        overrides: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        show: Show = lambda _: None,
    ) -> RunView:
        """Train and merge learners; the run, when it is ready.

        Args:
            overrides: settings of the run, nested as in `RunConfig`.
            seed: of everything random.
            show: told how far it is.

        Raises:
            RunFailedError: it failed; the message says why.
            ConfigError: a setting that does not exist, or does not fit the data.
        """
        client, given = self.client, dict(overrides or {})
        settings: dict[str, Any] = {"model": self.model, "seed": seed}
        if self._initial is not None:
            blob = client.upload_weights(pack(copy_to_cpu(self._initial.state_dict())))
            settings = merge(settings, {"initialization": {"weights_sha256": blob.sha256}})
        check = self._require_workers()
        run = client.start_run(merge(settings, given))
        pause = threading.Event()
        while run.goes_on:
            show(progress_of(run))
            check()
            pause.wait(_LOOK_SECONDS)
            run = client.run(run.run_id)
        return client.wait(run.run_id)

    def _require_workers(self) -> Check:
        """The workers, from the first run on: a diagnosis needs none."""
        if self._check is None:
            address, folder = self.client.address, self._folder / "workers"
            device, allowed = self._device, self.allowed_modules
            self._check = self._stack.enter_context(
                worker_thread(address, folder, device=device, allowed_modules=allowed)
            )
        return self._check

    def _settings(self) -> CoordinatorSettings:
        return load_settings(
            CoordinatorSettings,
            config=None,
            flags={
                "dataset": {"source": f"{MODULE}:data"},
                "run": {"model": self.model},
                "listen": "127.0.0.1:0",
                "state_dir": self._state_dir or self._folder / "state",
                "device": self._device,
                "allow_modules": self.allowed_modules,
                "drain_seconds": 1.0,
                "insecure": False,
                "require_token": False,
            },
        )

    def _close(self) -> None:
        client, self._client, self._check = self._client, None, None
        if client is not None:
            client.close()


@contextmanager
def _the_only_one() -> Iterator[None]:
    if not _only_one.acquire(blocking=False):
        raise ConfigError(
            "another session is open in this process, and torch's threads and generators are "
            "one session's at a time. Wait for its end, or use its own client."
        )
    try:
        yield
    finally:
        _only_one.release()


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


def _maker(model: nn.Module | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    if not isinstance(model, nn.Module):
        return model
    mine = copy.deepcopy(model).cpu()
    return lambda num_classes: copy.deepcopy(mine)


def progress_of(run: RunView) -> ProgressView:
    """A run as one line and a share of its present state."""
    config, progress = run.config.learners, run.progress
    if run.state is RunState.TRAINING:
        done = sum(
            config.num_steps if learner.state is LearnerState.DONE else learner.step
            for learner in run.learners
        )
        return ProgressView(state_line(run), done, config.num_steps * len(run.learners))
    return ProgressView(
        state_line(run), progress.done if progress else 0, progress.total if progress else 0
    )
