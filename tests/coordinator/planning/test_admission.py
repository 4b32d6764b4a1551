"""Runs that are admitted or refused, on a machine of 8 GiB that the test makes up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.errors import (
    ConfigError,
    FactoryNotAllowedError,
    OverLimitError,
    UnknownNameError,
    WeightsError,
)
from lipt.common.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.common.models.registry import build_model, build_without_values
from lipt.common.process.machine import Machine
from lipt.common.weights.files import pack
from lipt.coordinator.planning import admission as admitting
from lipt.coordinator.planning.admission import Admission, DataFigures
from lipt.coordinator.settings import LimitSettings
from tests import tiny
from tests.faults.memory import memory_growth

PHOTOGRAPHS = DataFigures((200,) * 10, ImageSpec(3, 224, 224))
DIGITS = DataFigures((50,) * 10, ImageSpec(1, 8, 8))
MACHINE = Machine(num_cores=2, memory_bytes=8 * 2**30)


def admission(
    directory: Path, data: DataFigures = DIGITS, machine: Machine = MACHINE, **limits: Any
) -> Admission:
    return Admission(
        BlobStore(directory, max_blob_bytes=2**20),
        data,
        limits=validate(LimitSettings, limits),
        machine=machine,
        allowed_modules=("tests.tiny", "torch"),
        evaluation_batch_size=16,
    )


def run(model: str = "tests.tiny:linear", **sections: Any) -> RunConfig:
    learners = {"num_learners": 2, "batch_size": 16, **sections.pop("learners", {})}
    return validate(RunConfig, {"model": model, "learners": learners, **sections})


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("resnet9", UnknownNameError, "resnet8"),
        ("os.path:join", FactoryNotAllowedError, "--allow-module"),
        ("torchvision:vgg11", ConfigError, "fails on 1x8x8 images"),
        ("torchvision:squeezenet1_0", ConfigError, "1x8x8|no nn.Linear"),
    ],
)
async def test_a_model_that_cannot_be_is_refused_as_before(
    tmp_path: Path, model: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await admission(tmp_path).require(run(model))


@pytest.mark.slow
async def test_large_models_that_are_asked_for_at_once_are_refused_for_next_to_no_memory(
    tmp_path: Path,
) -> None:
    gate = admission(tmp_path, PHOTOGRAPHS)
    await gate.require(run("torchvision:resnet18"))
    large = [run(f"torchvision:{name}") for name in ("regnet_y_128gf", "vit_h_14") * 2]
    with memory_growth(200 * 2**20):
        refusals = await asyncio.gather(*map(gate.require, large), return_exceptions=True)
    assert [type(refusal) for refusal in refusals] == [OverLimitError] * 4
    # 2.6 GB of weights, five times.
    assert "12.8 GB of it for copies of the weights, over limits.compute_memory" in str(refusals[0])


class Counted:
    """Counts who is in it at once; each stays until another could have come in."""

    def __init__(self, build: Callable[..., nn.Module]) -> None:
        self._build = build
        self._here = 0
        self._another = threading.Event()
        self.calls = self.most = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> nn.Module:
        self.calls += 1
        self._here += 1
        self.most = max(self.most, self._here)
        self._another.wait(0.05)
        self._here -= 1
        return self._build(*arguments, **keywords)


@pytest.fixture(params=["build_model", "build_without_values"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    build = Counted(getattr(admitting, request.param))
    monkeypatch.setattr(admitting, request.param, build)
    yield build
    assert build.calls


async def test_models_are_looked_at_one_after_another(tmp_path: Path, counted: Counted) -> None:
    gate = admission(tmp_path)
    models = ["tests.tiny:linear", "resnet8", "tests.tiny:linear", "resnet18"]
    tasks = [asyncio.create_task(gate.require(run(model))) for model in models]
    # Who leaves does not make room for a second one.
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await gate.require(run("tests.tiny:linear"))
    assert counted.most == 1


async def test_a_built_in_model_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Counted(build_without_values)
    monkeypatch.setattr(admitting, "build_without_values", build)
    gate = admission(tmp_path)
    for seed in range(3):
        await gate.require(run("resnet8", seed=seed))
    assert build.calls == 1


async def test_a_user_s_model_is_not_built_beyond_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[nn.Module] = []

    def wide(*, num_classes: int) -> nn.Module:
        # 400 MB each, and never written to.
        built.extend(nn.Linear(10**4, 10**4, device="meta").to_empty(device="cpu") for _ in "1234")
        return nn.Sequential(*built)

    monkeypatch.setattr(tiny, "linear", wide)
    with pytest.raises(OverLimitError, match=r"tests\.tiny:linear: building it takes more than 1"):
        await admission(tmp_path).require(run())
    # A fifth of 6.9 GB is 1.4 GB.
    assert len(built) < 4


async def test_an_operator_s_own_run_that_would_be_refused_is_said_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await admission(tmp_path).look_at(run(evaluation_threads=64))
    assert "a run as [run] has it would be refused: evaluation_threads = 64" in caplog.text
    with pytest.raises(UnknownNameError):
        await admission(tmp_path).look_at(run("resnet9"))


async def test_examples_that_are_no_images_are_planned_by_their_bytes(tmp_path: Path) -> None:
    column = Column("", ColumnType.FLOAT32, (1, 8, 8))
    data = DataFigures((50,) * 10, ColumnsSpec((column,)))
    assert (data.example_bytes, data.resident_bytes) == (4 * 64, 500 * 4 * 64)
    await admission(tmp_path, data).require(run())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": "resnet8"}, r"'resnet8' takes images; the data has float32\[64\]"),
        ({"augmentation": {"method": "crop_flip"}}, "crop_flip, which is of images; the data has"),
    ],
)
async def test_what_is_of_images_is_refused_where_there_are_none(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    data = DataFigures((50,) * 10, ColumnsSpec((Column("", ColumnType.FLOAT32, (64,)),)))
    asked = run(**config)
    with pytest.raises(ConfigError, match=words):
        await admission(tmp_path, data).require(asked)
    with pytest.raises(ConfigError, match=words):
        await admission(tmp_path, data).look_at(asked)


async def test_layers_that_there_are_can_be_frozen_and_others_are_refused(tmp_path: Path) -> None:
    gate = admission(tmp_path)
    await gate.require(run("resnet8", learners={"frozen": ["blocks.*", "conv1.*"]}))
    with pytest.raises(ConfigError, match=r"'layer1\.\*' matches none of the model's 29 param"):
        await gate.require(run("resnet8", learners={"frozen": ["layer1.*"]}))
    with pytest.raises(ConfigError, match="Freeze fewer"):
        await gate.require(run(learners={"frozen": ["*"]}))


async def test_weights_of_other_classes_need_a_new_head_and_it_is_told_what_is_taken(
    tmp_path: Path,
) -> None:
    gate = admission(tmp_path)
    build = {"inputs": DIGITS.inputs, "seed": 0}
    given = build_model("resnet8", num_classes=3, **build).state_dict() | {"proj.w": torch.ones(2)}
    name = gate.blobs.put_bytes(pack({f"module.{key}": item for key, item in given.items()}))
    assert await gate.require(
        run("resnet8", initialization=_given(name.sha256, new_head=True))
    ) == (
        "theta* begins with 54 tensors of the weights given; new: 'fc.weight', 'fc.bias'; "
        "left over: 'module.proj.w'."
    )
    with pytest.raises(WeightsError, match="That is the head alone: start with a new one"):
        await gate.require(run("resnet8", initialization=_given(name.sha256)))


def _given(sha256: str, *, new_head: bool = False) -> dict[str, Any]:
    return {"weights_sha256": sha256, "new_head": new_head}
