"""Requests about runs, with a driver that only takes note of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.errors import (
    ConfigError,
    FactoryNotAllowedError,
    InvalidRequestError,
    LiptError,
    OverLimitError,
    UnknownBlobError,
    UnknownNameError,
    WeightsError,
)
from lipt.common.process import Machine
from lipt.common.states import RunState
from lipt.common.tensor_files import pack
from lipt.coordinator.runs.admission import RunAdmission
from lipt.coordinator.runs.requests import RunRequests, page_of
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import LimitSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, RunSummary
from lipt.v1 import config_pb2
from tests.coordinator.fakes import DATA, THETA
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.state.conftest import stored_runs

DEFAULTS = RunConfig(
    model="tests.tiny:linear",
    learners=LearnersConfig(num_learners=4, num_minibatches=1, batch_size=16),
)
NOTHING = config_pb2.RunConfig()


class World:
    """The runs of a coordinator with 500 examples of 10 classes."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.database = database
        self.store = RunStore(self.database)
        self.blobs = BlobStore(directory, max_blob_bytes=2**20)
        self.started: list[str] = []
        admission = RunAdmission(
            self.blobs,
            DATA,
            limits=LimitSettings(),
            machine=Machine(num_cores=2, memory_bytes=8 * 2**30),
            allowed_modules=("tests.tiny",),
            evaluation_batch_size=64,
        )
        self.requests = RunRequests(
            self.store,
            cast("Any", SimpleNamespace(start=self.started.append)),
            admission,
            self.blobs,
            DATA,
            defaults=DEFAULTS,
            wall_clock=lambda: 1234.5,
        )

    async def create(
        self, name: str = "", *, request_id: str = "", model: str = "", **learners: Any
    ) -> RunRecord:
        overrides = config_pb2.RunConfig(learners=config_pb2.LearnersConfig(**learners))
        if model:
            overrides.model = model
        return await self.requests.create(request_id, name, overrides)

    async def start_from(self, content: bytes) -> RunRecord:
        given = self.blobs.put_bytes(content)
        initialization = config_pb2.InitializationConfig(weights_sha256=given.sha256)
        return await self.requests.create(
            "", "", config_pb2.RunConfig(initialization=initialization)
        )

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.store.runs()]


@pytest.fixture
def world(tmp_path: Path, database: Database) -> World:
    return World(tmp_path, database)


async def test_a_run_has_the_requested_settings_and_defaults(world: World) -> None:
    run = await world.create("mine", request_id="q", num_learners=2)
    assert run.config == DEFAULTS.model_copy(
        update={"learners": DEFAULTS.learners.model_copy(update={"num_learners": 2})}
    )
    assert (run.name, run.request_id, run.created_at) == ("mine", "q", 1234.5)
    assert (run.fingerprint, run.num_classes) == (DATA.fingerprint, 10)
    assert run.state is RunState.PENDING
    assert world.started == [run.run_id]
    assert await stored_runs(world.database) == (run,)


async def test_defaults_that_are_too_large_for_the_data_are_lowered(world: World) -> None:
    # Of 500 examples in 10 classes, 20 of each are held out.
    run = await world.create(num_learners=18)
    assert (run.config.learners.num_learners, run.config.learners.batch_size) == (18, 16)
    assert run.lowered_defaults == ""
    run = await world.create(batch_size=100)
    assert (run.config.learners.num_learners, run.config.learners.batch_size) == (3, 100)
    assert run.lowered_defaults == (
        "4 learners x 1 minibatches x 100 examples = 400 are more than the 300 of the training "
        "split, so defaults were lowered to fit: learners.num_learners 3 in place of 4"
    )
    assert run in await stored_runs(world.database)


async def test_concurrent_repeated_requests_start_one_run(world: World) -> None:
    runs = await asyncio.gather(*(world.create("mine", request_id="q") for _ in range(5)))
    assert len({run.run_id for run in runs}) == 1
    assert world.started == [runs[0].run_id]


async def test_a_run_continues_if_its_caller_leaves_during_the_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, save_run = asyncio.Event(), world.database.save_run

    async def noted(*record: Any) -> None:
        writing.set()
        await save_run(*record)

    monkeypatch.setattr(world.database, "save_run", noted)
    creating = asyncio.create_task(world.create("mine", request_id="q"))
    await writing.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    run = await world.create("mine", request_id="q")
    assert await stored_runs(world.database) == (run,)
    assert world.started == [run.run_id]


async def test_a_run_without_a_name_gets_the_next_free_one(world: World) -> None:
    await world.create("run-2")
    runs = [await world.create() for _ in range(2)]
    assert [run.name for run in runs] == ["run-3", "run-4"]
    # A removed run's number is not given to another.
    await world.store.update(runs[0].run_id, lambda run: run.changed(state=RunState.FAILED))
    await world.store.remove(runs[0].run_id)
    assert (await world.create()).name == "run-5"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 81, "longer than 80 characters"),
        ("a/b", "has '/' or unprintable ones"),
        ("two\nlines", "has '/' or unprintable ones"),
        ("latest", "'latest' already"),
        ("taken", "'taken' already. Choose another --name"),
    ],
)
async def test_invalid_run_names_are_refused(world: World, name: str, words: str) -> None:
    await world.create("taken")
    with pytest.raises(ConfigError, match=words):
        await world.create(name)
    assert world.names == ["taken"]
    assert len(world.started) == 1


NAN = float("nan")


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({"model": "resnet9"}, UnknownNameError, "resnet9"),
        ({"model": "os:system"}, FactoryNotAllowedError, "--allow-module"),
        ({"num_learners": 100}, ConfigError, r"100 learners x 1 .* 1600"),
        ({"cpu_threads": 2**31 - 1}, OverLimitError, "2147483647 threads, over .* = 256 threads"),
        (pack({"w": torch.zeros(3)}), WeightsError, "missing, the model has"),
        (b"no safetensors file", WeightsError, "safetensors"),
        (
            pack(THETA | {"1.bias": torch.full((10,), NAN)}),
            WeightsError,
            r"that the run is to start from .* '1\.bias' has NaN .* \(10 of 10\)\. Give",
        ),
    ],
)
async def test_an_invalid_run_is_refused_before_it_is_stored(
    world: World, wanted: dict[str, Any] | bytes, error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await (world.start_from(wanted) if isinstance(wanted, bytes) else world.create(**wanted))
    assert world.names == []
    assert world.started == []


async def test_weights_to_start_from_have_to_be_uploaded_first(world: World) -> None:
    initialization = config_pb2.InitializationConfig(weights_sha256="a" * 64)
    with pytest.raises(UnknownBlobError, match="Upload it first"):
        await world.requests.create("", "", config_pb2.RunConfig(initialization=initialization))


RUN = RunSummary.of(made_up_run())


def runs_at(times: list[float]) -> list[RunSummary]:
    return [replace(RUN, run_id=f"r{place}", created_at=at) for place, at in enumerate(times)]


def ids(runs: object) -> list[str]:
    return [run.run_id for run in runs]  # type: ignore[attr-defined]


@given(times=st.lists(st.floats(1.0, 2e9), max_size=12), size=st.integers(1, 5))
def test_pages_reach_the_oldest_run(times: list[float], size: int) -> None:
    runs, seen, token = runs_at(times), list[RunSummary](), ""
    while True:
        page, token = page_of(runs, token, size)
        assert len(page) <= size
        seen.extend(page)
        if not token:
            break
    expected = sorted(runs, key=lambda run: (run.created_at, run.run_id), reverse=True)
    assert seen == expected


def test_new_and_removed_runs_do_not_shift_pages() -> None:
    runs = runs_at([1.0, 2.0, 3.0, 4.0, 5.0])
    page, token = page_of(runs, "", 2)
    assert ids(page) == ["r4", "r3"]
    # A newer one starts; the last that was shown is removed, and the first.
    later = [*runs[:3], replace(RUN, run_id="new", created_at=6.0)]
    page, token = page_of(later, token, 2)
    assert ids(page) == ["r2", "r1"]
    assert ids(page_of(later, token, 2)[0]) == ["r0"]


@pytest.mark.parametrize(
    "token", ["1", "-1", "nan/r", "inf/r", "0x1.8p+1", "0x1.8p+1/", "0x1.8p+9999/r", "x" * 9999]
)
def test_an_unknown_page_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"page_token '.{0,64}' is none"):
        page_of(runs_at([1.0]), token, 2)
