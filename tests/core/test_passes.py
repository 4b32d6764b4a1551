import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from lipt.common.errors import DataError, SignalsError, WeightsError
from lipt.common.tensor_files import Weights
from lipt.core.passes import (
    Batches,
    encode_range,
    pass_over,
    read_range,
    results_on_cpu,
    score_range,
)
from lipt.core.tasks import ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import to_model_input
from lipt.data.inputs.specs import Inputs
from lipt.data.loading import open_dataset
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network


def tensor(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)
    return inputs


@pytest.mark.parametrize("some", [None, torch.arange(20).flip(0)], ids=["all", "some"])
def test_batches_are_in_order_and_progress_is_reported_after_each(some: Tensor | None) -> None:
    dataset, told = made_up_dataset(20 if some is None else 50), list[tuple[int, int]]()
    batches = Batches(dataset, IMAGE, CPU, 8, lambda *counts: told.append(counts), some)
    assert len(batches) == 20
    seen = []
    for rows, inputs_BCHW, labels_B in batches:
        seen.append(rows)
        assert len(told) == len(seen) - 1
        ids_B = batches.ids_N[rows]
        images_BCHW = dataset.images(ids_B)
        assert torch.equal(tensor(inputs_BCHW), tensor(to_model_input(images_BCHW, IMAGE, CPU)))
        assert torch.equal(labels_B, dataset.labels_N[ids_B])
    assert seen == [slice(0, 8), slice(8, 16), slice(16, 20)]
    assert told == [(8, 20), (16, 20), (20, 20)]


def folder(place: Path, num_images: int = 20) -> Dataset:
    generator = np.random.default_rng(0)
    for number in range(num_images):
        own = place / "ab"[number % 2]
        own.mkdir(exist_ok=True)
        pixels_HWC = generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels_HWC).save(own / f"{number:02}.png")
    return open_dataset(f"imagefolder:{place}", memory_budget_bytes=0)


def threads_of(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names = set()
    given = Dataset.examples

    def examples(self: Dataset, ids: Tensor) -> object:
        names.add(threading.current_thread().name.partition("_")[0])
        return given(self, ids)

    monkeypatch.setattr(Dataset, "examples", examples)
    list(Batches(dataset, IMAGE, CPU, 8, lambda *_: None))
    return names


def test_only_decoding_uses_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.current_thread().name
    assert threads_of(made_up_dataset(), monkeypatch) == {here}
    files = folder(tmp_path)
    assert threads_of(files, monkeypatch) == {"decode"}
    # As a user's own rows are, which may be bound to the thread that opened them.
    monkeypatch.setattr(type(files.rows), "concurrent", False)
    assert threads_of(files, monkeypatch) == {here}


def test_a_broken_file_is_named_at_its_batch(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    (tmp_path / "b" / "19.png").write_bytes(b"no image")
    told = list[tuple[int, int]]()
    batches = Batches(dataset, IMAGE, CPU, 8, lambda done, total: told.append((done, total)))
    with pytest.raises(DataError, match=r"19\.png"):
        list(batches)
    assert told == [(8, 20), (16, 20)]
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]


DATASET, MODEL = made_up_dataset(), made_up_network()
TASK = ScoringTask(
    model="tests",
    num_classes=3,
    image=IMAGE,
    fingerprint=DATASET.fingerprint,
    start=0,
    stop=len(DATASET),
    batch_size=4,
    threads=1,
)


def score(task: ScoringTask) -> Weights:
    return score_range(MODEL, DATASET, task, device=CPU)


@given(st.integers(1, 5))
def test_ranges_of_whole_batches_equal_one_pass_bit_for_bit(num_batches: int) -> None:
    whole = {"errors": torch.empty(len(DATASET), 3), "features": torch.empty(len(DATASET), 64)}
    batches = Batches(DATASET, IMAGE, CPU, TASK.batch_size, lambda *_: None)
    pass_over(MODEL, batches, whole["errors"], whole["features"])
    size = num_batches * TASK.batch_size
    parts = [
        score(replace(TASK, start=start, stop=min(start + size, TASK.stop)))
        for start in range(0, TASK.stop, size)
    ]
    for name, values in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), values)


def test_float16_values_are_rounded_and_too_large_features_refused_by_id() -> None:
    halves = score(replace(TASK, half_errors=True, half_features=True))
    for name, values in score(TASK).items():
        assert torch.equal(halves[name], values.half())
    large = made_up_network()
    with torch.no_grad():
        for parameter in list(large.parameters())[:-2]:
            parameter.mul_(1e4)
    task = replace(TASK, start=4, half_features=True)
    with pytest.raises(SignalsError, match=r"features, kept in float16, are not finite .* ids 4"):
        score_range(large, DATASET, task, device=CPU)


def test_a_range_file_keeps_its_bits_and_wrong_files_are_refused() -> None:
    task = replace(TASK, stop=8)
    scored = score(task)
    num_features = scored["features"].shape[1]
    errors, features = read_range(encode_range(scored), task, num_features)
    assert torch.equal(errors, scored["errors"])
    assert torch.equal(features, scored["features"])
    with pytest.raises(WeightsError, match="the model has"):
        read_range(encode_range(scored), TASK, num_features)
    scored["errors"][0, 0] = float("nan")
    with pytest.raises(SignalsError, match="examples 0 to 7"):
        read_range(encode_range(scored), task, num_features)


Computed = Iterator[tuple[slice, tuple[Tensor, ...]]]


def computed(device: str, asked: list[int]) -> Computed:
    for number in range(5):
        asked.append(number)
        values_B = torch.arange(3, device=device) + 10 * number
        yield slice(3 * number, 3 * number + 3), (values_B, values_B > 11)


@pytest.mark.parametrize(
    ("device", "ahead"),
    [
        ("cpu", 1),
        # The next batch is on its way when one is handed on.
        pytest.param(
            "cuda", 2, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
        ),
    ],
)
def test_finished_batches_are_passed_on_in_order(device: str, ahead: int) -> None:
    asked: list[int] = []
    for number, (rows, (values_B, above_B)) in enumerate(results_on_cpu(computed(device, asked))):
        assert len(asked) == min(number + ahead, 5)
        assert values_B.device.type == above_B.device.type == "cpu"
        assert rows == slice(3 * number, 3 * number + 3)
        expected = [10 * number, 10 * number + 1, 10 * number + 2]
        assert values_B.tolist() == expected
        assert above_B.tolist() == [value > 11 for value in expected]
