"""Runs that are admitted or refused on machines that the tests make up."""

import asyncio
import dataclasses
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
from lipt.common.errors import ConfigError, OverLimitError, UnknownNameError, WeightsError
from lipt.common.process import Machine
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.runs import admission as admitting
from lipt.coordinator.runs.admission import RunAdmission, ceilings
from lipt.coordinator.settings import LimitSettings
from lipt.core.planning import Limit, RunPlan, excesses, plan_run, resident_bytes
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.targets.values import NextTokens
from lipt.models.footprint import ModelFigures
from lipt.models.registry import build_model, build_without_values
from tests import tiny
from tests.coordinator.fakes import DATA as DIGITS
from tests.coordinator.fakes import described
from tests.faults.memory import memory_growth

PHOTOGRAPHS = described((200,) * 10, ImageSpec(3, 224, 224))
MACHINE = Machine(num_cores=2, memory_bytes=8 * 2**30)


def admission(directory: Path, data: DataDescription = DIGITS, **limits: Any) -> RunAdmission:
    return RunAdmission(
        BlobStore(directory, max_blob_bytes=2**20),
        data,
        limits=validate(LimitSettings, limits),
        machine=MACHINE,
        allowed_modules=("tests.tiny", "torch"),
        evaluation_batch_size=16,
    )


def run(model: str = "tests.tiny:linear", **sections: Any) -> RunConfig:
    learners = {"num_learners": 2, "batch_size": 16, **sections.pop("learners", {})}
    return validate(RunConfig, {"model": model, "learners": learners, **sections})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("torchvision:vgg11", "fails on 1x8x8 images"),
        ("torchvision:squeezenet1_0", "1x8x8|no nn.Linear"),
    ],
)
async def test_an_invalid_model_is_refused(tmp_path: Path, model: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await admission(tmp_path).require(run(model))


@pytest.mark.slow
async def test_refusing_large_models_takes_little_memory(tmp_path: Path) -> None:
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


async def test_models_are_measured_one_at_a_time(tmp_path: Path, counted: Counted) -> None:
    gate = admission(tmp_path)
    models = ["tests.tiny:linear", "resnet8", "tests.tiny:linear", "resnet18"]
    tasks = [asyncio.create_task(gate.require(run(model))) for model in models]
    # Who leaves does not make room for a second one.
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await gate.require(run("tests.tiny:linear"))
    assert counted.most == 1


async def test_a_built_in_model_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Counted(build_without_values)
    monkeypatch.setattr(admitting, "build_without_values", build)
    gate = admission(tmp_path)
    for seed in range(3):
        await gate.require(run("resnet8", seed=seed))
    assert build.calls == 1


async def test_no_model_is_built_beyond_the_ceiling(
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


async def test_an_operator_s_default_run_above_the_limits_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await admission(tmp_path).require(run(evaluation_threads=64), is_default=True)
    assert "the default run of [run] would be refused: evaluation_threads = 64" in caplog.text
    with pytest.raises(UnknownNameError):
        await admission(tmp_path).require(run("resnet9"), is_default=True)


@pytest.mark.parametrize(
    ("length", "num_tokens", "admitted"),
    [(128, 259, True), (2**13, 259, False), (128, 2**18, False)],
)
async def test_long_texts_and_many_tokens_are_refused_with_what_they_take(
    tmp_path: Path, length: int, num_tokens: int, admitted: bool
) -> None:
    column = Column("", ColumnType.INT64, (length,), num_values=num_tokens)
    data = described((400, 100), ColumnsSpec((column,)))
    texts = dataclasses.replace(data, other_target=NextTokens(num_tokens=num_tokens, length=length))
    gate = admission(tmp_path, texts, worker_memory=8 * 2**30)
    if admitted:
        await gate.require(run("text:causal"))
        return
    with memory_growth(200 * 2**20), pytest.raises(OverLimitError, match="worker_memory") as caught:
        await gate.require(run("text:causal"))
    assert "of it for the activations of a minibatch" in str(caught.value)


async def test_column_examples_are_planned_by_their_bytes(tmp_path: Path) -> None:
    column = Column("", ColumnType.FLOAT32, (1, 8, 8))
    data = described((50,) * 10, ColumnsSpec((column,)))
    assert resident_bytes(data.inputs, 500) == 500 * 4 * 64
    await admission(tmp_path, data).require(run())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": "resnet8"}, r"'resnet8' takes images; the data has float32\[64\]"),
        ({"augmentation": {"method": "crop_flip"}}, "crop_flip, which is of images; the data has"),
    ],
)
async def test_image_settings_are_refused_for_other_data(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    data = described((50,) * 10, ColumnsSpec((Column("", ColumnType.FLOAT32, (64,)),)))
    asked = run(**config)
    with pytest.raises(ConfigError, match=words):
        await admission(tmp_path, data).require(asked)


async def test_only_existing_layers_can_be_frozen(tmp_path: Path) -> None:
    gate = admission(tmp_path)
    await gate.require(run("resnet8", learners={"frozen": ["blocks.*", "conv1.*"]}))
    with pytest.raises(ConfigError, match=r"'layer1\.\*' matches none of the model's 29 param"):
        await gate.require(run("resnet8", learners={"frozen": ["layer1.*"]}))
    with pytest.raises(ConfigError, match="Freeze fewer"):
        await gate.require(run(learners={"frozen": ["*"]}))


async def test_weights_of_other_classes_need_a_new_head(tmp_path: Path) -> None:
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


GB = 10**9
TEN_GB = Machine(num_cores=2, memory_bytes=10 * GB)
MOST = 2**31 - 1
# resnet18 on 32x32 pixels, about; and ten thousand examples of ten classes.
RESNET18 = ModelFigures(45 * 10**6, 5_300_000, 1_300_000)


def limits(free_disk_bytes: int = 100 * GB, **settings: Any) -> dict[str, Limit]:
    return ceilings(validate(LimitSettings, settings), TEN_GB, free_disk_bytes=free_disk_bytes)


def planned(**config: Any) -> RunPlan:
    counts, images = (1000,) * 10, ImageSpec(3, 32, 32)
    return plan_run(validate(RunConfig, config), RESNET18, images, counts, evaluation_batch_size=64)


def broken(settings: dict[str, Any] | None = None, **config: Any) -> tuple[str, ...]:
    return excesses(planned(**config).costs, limits(**(settings or {})))


def test_every_cost_of_a_plan_has_a_limit() -> None:
    assert {cost.limited for cost in planned().costs} == limits().keys()


def test_default_limits_follow_from_the_machine() -> None:
    found = limits()
    assert (found["compute_threads"].at_most, found["compute_memory"].at_most) == (8, 8 * GB)
    assert found["run_disk"].at_most == 100 * GB
    assert found["compute_threads"].name == "limits.compute_threads"


def test_configured_limits_apply_up_to_the_free_disk() -> None:
    found = limits(compute_threads=64, compute_memory="4GB", run_disk="2GB")
    assert found["compute_threads"].at_most == 64
    assert found["compute_memory"].at_most == 4 * GB
    assert found["run_disk"].at_most == 2 * GB
    assert limits(free_disk_bytes=GB, run_disk="2GB")["run_disk"].at_most == GB


@pytest.mark.parametrize(
    ("config", "knob", "limit"),
    [
        ({"evaluation_threads": 9}, "evaluation_threads", "limits.compute_threads"),
        ({"learners": {"cpu_threads": 257}}, "learners.cpu_threads", "limits.worker_threads"),
        (
            # 1,000 states of 10 learners, of 45 MB and a mask each, are 464 GB.
            {"learners": {"num_snapshots": 1000, "num_steps": 1000, "num_learners": 10}},
            "learners.num_snapshots",
            "the free space of the state directory",
        ),
        (
            {"initialization": {"steps": 1, "batch_size": 5000}},
            "initialization.batch_size",
            "limits.compute_memory",
        ),
        ({"initialization": {"steps": MOST}}, "initialization.steps", "limits.compute_images"),
        ({"learners": {"num_steps": MOST}}, "learners.num_steps", "limits.worker_images"),
        ({"learners": {"max_attempts": MOST}}, "learners.num_steps", "limits.worker_images"),
    ],
)
def test_a_setting_above_a_limit_is_named_with_it(
    config: dict[str, Any], knob: str, limit: str
) -> None:
    [sentence] = broken(**config)
    assert sentence.startswith(f"{knob} = ")
    assert f", over {limit} = " in sentence


def test_each_setting_is_reported_once_with_its_worst_excess() -> None:
    # 1,000 threads are 125 times the limit on threads, and their stacks all of the memory.
    [sentence] = broken({"compute_memory": "9GB"}, evaluation_threads=1000)
    assert sentence.startswith("evaluation_threads = 1000: ")
    assert "Lower evaluation_threads to at most 8," in sentence
    # Without this limit the memory is refused.
    [sentence] = broken({"compute_memory": "9GB", "compute_threads": 1000}, evaluation_threads=1000)
    assert sentence.startswith("evaluation_threads = 1000: memory of the compute process")
