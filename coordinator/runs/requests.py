"""Run requests: what is refused before a run begins, and what is started."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection

from lipt.common.blobs.store import BlobStore
from lipt.common.config.messages import run_config_from_proto
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import ConfigError, RunNotReadyError, WeightsError
from lipt.common.models import build_model
from lipt.common.states import LearnerState, RunState
from lipt.common.weights.files import read_weights
from lipt.common.weights.finite import non_finite
from lipt.common.weights.specs import specs_of
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.pretraining.sharding import num_validation_examples, require_shards_fit
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.store import Activity, RunStore
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import config_pb2

_MAX_NAME_CHARACTERS = 80


class RunRequests:
    """Creates and cancels runs."""

    def __init__(
        self,
        store: RunStore,
        driver: RunDriver,
        blobs: BlobStore,
        data: DataDescription,
        *,
        defaults: RunConfig,
        allowed_modules: Collection[str],
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._driver = driver
        self._blobs = blobs
        self._data = data
        self._allowed_modules = allowed_modules
        self._creating = asyncio.Lock()
        self._defaults = defaults
        self._wall_clock = wall_clock

    async def create(
        self, request_id: str, name: str, overrides: config_pb2.RunConfig
    ) -> RunRecord:
        """Start a run, or answer with the one that this request started before.

        Raises:
            ConfigError: a value is out of range, the shards do not fit the data, or
                the name is taken.
            UnknownNameError: there is no such model.
            WeightsError: the weights to start from are not the model's.
        """
        request_id = request_id or uuid.uuid4().hex
        earlier = self._store.find_request(request_id)
        if earlier is not None:
            return earlier
        config = run_config_from_proto(overrides, self._defaults)
        given = config.initialization.weights_sha256
        # Until the record names them they are anybody's upload, which expires.
        with self._blobs.expiry.holding(*([given] if given else [])):
            return await self._create(request_id, name, config)

    async def _create(self, request_id: str, name: str, config: RunConfig) -> RunRecord:
        self._check_data(config)
        await self.check_model(config)
        async with self._creating:
            earlier = self._store.find_request(request_id)
            if earlier is not None:
                return earlier
            run = RunRecord(
                run_id=uuid.uuid4().hex[:12],
                name=self._free_name(name),
                request_id=request_id,
                created_at=self._wall_clock(),
                config=config,
                fingerprint=self._data.fingerprint,
                num_classes=len(self._data.class_names),
            )
            await self._store.add(run)
        self._driver.start(run.run_id)
        return run

    async def cancel(self, key: str) -> RunRecord:
        """End a run; one that has ended stays as it is."""
        return await self._driver.cancel(self._store.find(key).run_id)

    async def check_model(self, config: RunConfig) -> None:
        """Build the model once, and read the weights that it is to start from.

        Raises:
            UnknownNameError: there is no such model.
            FactoryNotAllowedError: its module is not allowed here.
            ConfigError: it cannot be built for the data, or has no linear head.
            UnknownBlobError: the weights were not uploaded.
            WeightsError: they are another model's, no safetensors file, or not finite.
        """
        await asyncio.to_thread(self._try_model, config)

    def _try_model(self, config: RunConfig) -> None:
        model = build_model(
            config.model,
            num_classes=len(self._data.class_names),
            image_shape=self._data.image_shape,
            seed=0,
            allowed_modules=self._allowed_modules,
        )
        given = config.initialization.weights_sha256
        if given is not None:
            path = self._blobs.path(self._blobs.find(given))
            like = specs_of(model.state_dict())
            weights = read_weights(path, like=like, max_bytes=self._blobs.max_blob_bytes)
            if bad := non_finite(weights):
                raise WeightsError(
                    f"the weights that the run is to start from cannot be trained on: {bad}. Give "
                    "weights from before they diverged."
                )

    def _check_data(self, config: RunConfig) -> None:
        # Refuse a run whose shards need more examples than the training split has.
        held_out = num_validation_examples(self._data.class_counts, config.validation)
        require_shards_fit(self._data.num_examples - held_out, config.learners)

    def _free_name(self, wanted: str) -> str:
        taken = {run.name for run in self._store.runs()} | {"latest"}
        if not wanted:
            number = len(self._store.runs()) + 1
            while f"run-{number}" in taken:
                number += 1
            return f"run-{number}"
        if len(wanted) > _MAX_NAME_CHARACTERS or not wanted.isprintable() or "/" in wanted:
            raise ConfigError(
                f"run name {wanted[:_MAX_NAME_CHARACTERS]!r} is longer than "
                f"{_MAX_NAME_CHARACTERS} characters, or has '/' or unprintable ones. "
                "Choose another."
            )
        if wanted in taken:
            raise ConfigError(f"there is a run named {wanted!r} already. Choose another --name.")
        return wanted


def require_ready(run: RunRecord, activity: Activity) -> None:
    """Refuse what needs theta_p while there is none.

    Raises:
        RunNotReadyError: says how far the run is, and how to follow it.
    """
    if run.state is not RunState.READY:
        raise RunNotReadyError(how_far(run, activity))


def how_far(run: RunRecord, activity: Activity) -> str:
    """A sentence on a run that is not there yet, or never will be."""
    if run.state.ended and run.state is not RunState.READY:
        verb = "was" if run.state is RunState.CANCELLED else "has"
        why = "" if run.message in {"", run.state} else f": {run.message.removesuffix('.')}"
        return f"run {run.name} {verb} {run.state}{why}. Start another: lipt run start"
    parts = []
    if run.state is RunState.TRAINING:
        parts.append(f"{run.count()[LearnerState.DONE]} of {len(run.learners)} learners are in")
    if activity.ahead:
        parts.append(f"{activity.text}, {activity.ahead} ahead")
    elif activity.text:
        parts.append(f"{activity.text}, {activity.done} of {activity.total}")
    where = f" ({'; '.join(parts)})" if parts else ""
    return f"run {run.name} is {run.state}{where}. Follow it with: lipt run watch {run.name}"
