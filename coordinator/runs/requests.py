"""Run requests: creates, cancels and lists runs, or refuses them."""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig, ShardRule
from lipt.common.config.values import run_config_from_proto
from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.common.observability.logs import log_about
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.runs.admission import RunAdmission
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord, RunSummary
from lipt.core.pretraining.sharding import fit_defaults, num_validation_examples, require_shards_fit
from lipt.v1 import config_pb2

_NUMBERED = re.compile(r"run-([1-9][0-9]{0,8})")
_MAX_NAME_CHARACTERS = 80
# Start time (a float64 in hexadecimal) and id of a page's last run: runs may come and go.
_PAGE_TOKEN = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,3})/([0-9a-zA-Z_-]{1,64})")


@dataclass(eq=False)
class RunRequests:
    """Creates and cancels runs."""

    store: RunStore
    driver: RunDriver
    admission: RunAdmission
    blobs: BlobStore
    data: DataDescription
    _: KW_ONLY
    defaults: RunConfig
    wall_clock: Callable[[], float]
    _creating: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def create(
        self, request_id: str, name: str, overrides: config_pb2.RunConfig, traceparent: str = ""
    ) -> RunRecord:
        request_id = request_id or uuid.uuid4().hex
        earlier = self.store.find_request(request_id)
        if earlier is not None:
            return earlier
        config = run_config_from_proto(overrides, self.defaults)
        held_out = num_validation_examples(self.data.class_counts, config.validation)
        asked = {field.name for field, _ in overrides.learners.ListFields()}
        num_train = self.data.num_examples - held_out
        learners, fitted = fit_defaults(
            config.learners, num_train, sources=self.data.source_names, fixed=asked
        )
        config = config.model_copy(update={"learners": learners})
        require_shards_fit(num_train, config.learners)
        by_source = config.learners.shards is ShardRule.SOURCE
        sources = (*self.data.source_names, *config.learners.worker_sources)
        given = config.initialization.weights_sha256
        # Until the record names them, they are an upload that may expire.
        with self.blobs.expiry.holding(*([given] if given else [])):
            note = await self.admission.require(config)

            async def add() -> RunRecord:
                async with self._creating:
                    earlier = self.store.find_request(request_id)
                    if earlier is not None:
                        return earlier
                    run = RunRecord(
                        run_id=uuid.uuid4().hex[:12],
                        name=self._free_name(name),
                        request_id=request_id,
                        created_at=self.wall_clock(),
                        config=config,
                        source=self.data.source,
                        num_examples=self.data.num_examples,
                        fingerprint=self.data.fingerprint,
                        num_classes=self.data.target.num_outputs,
                        other_target=self.data.other_target,
                        lowered_defaults=fitted,
                        sources=sources if by_source else (),
                        initialization_note=note,
                        traceparent=traceparent,
                    )
                    await self.store.add(run)
                self.driver.start(run.run_id)
                return run

            # If the caller leaves now, the stored run must still be shown and driven.
            run = await asyncio.shield(add())
        log_about(run=run.run_id)
        return run

    def _free_name(self, asked: str) -> str:
        taken = {run.name for run in self.store.runs()} | {LATEST}
        if not asked:
            # Above the highest number: a lower one may be of a removed run.
            matches = (_NUMBERED.fullmatch(name) for name in taken)
            numbers = (int(match[1]) for match in matches if match is not None)
            return f"run-{max(len(self.store.runs()), *numbers, 0) + 1}"
        if len(asked) > _MAX_NAME_CHARACTERS or not asked.isprintable() or "/" in asked:
            raise ConfigError(
                f"run name {asked[:_MAX_NAME_CHARACTERS]!r} is longer than "
                f"{_MAX_NAME_CHARACTERS} characters, or has '/' or unprintable ones. "
                "Choose another."
            )
        if asked in taken:
            raise ConfigError(f"there is a run named {asked!r} already. Choose another --name.")
        return asked


def page_of(runs: Iterable[RunSummary], token: str, size: int) -> tuple[Sequence[RunSummary], str]:
    """A page of runs, newest first, and the next page's token; empty at the end."""

    def place(run: RunSummary) -> tuple[float, str]:
        return run.created_at, run.run_id

    after = (math.inf, "")
    if token:
        match = _PAGE_TOKEN.fullmatch(token)
        if match is None:
            raise InvalidRequestError(
                f"page_token {token[:64]!r} is none that this service gave. Begin without one."
            )
        after = float.fromhex(match[1]), match[2]
    older = sorted((run for run in runs if place(run) < after), key=place, reverse=True)
    page = older[:size]
    if len(older) <= size:
        return page, ""
    return page, f"{page[-1].created_at.hex()}/{page[-1].run_id}"
