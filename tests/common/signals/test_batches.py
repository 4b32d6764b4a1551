import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lipt.common.data import Dataset, open_dataset
from lipt.common.errors import DataError
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Inputs
from lipt.common.signals.passes import Batches
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset


def tensor(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)
    return inputs


@pytest.mark.parametrize("some", [None, torch.arange(20).flip(0)], ids=["all", "some"])
def test_batches_are_the_examples_in_order_and_progress_is_told_after_each(
    some: Tensor | None,
) -> None:
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
    """Image files that are decoded when they are asked for."""
    generator = np.random.default_rng(0)
    for number in range(num_images):
        own = place / "ab"[number % 2]
        own.mkdir(exist_ok=True)
        pixels_HWC = generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels_HWC).save(own / f"{number:02}.png")
    return open_dataset(f"imagefolder:{place}", memory_budget_bytes=0)


def threads_of(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """In which threads examples are asked for."""
    names = set()
    given = Dataset.examples

    def examples(self: Dataset, ids: Tensor) -> object:
        names.add(threading.current_thread().name.partition("_")[0])
        return given(self, ids)

    monkeypatch.setattr(Dataset, "examples", examples)
    list(Batches(dataset, IMAGE, CPU, 8, lambda *_: None))
    return names


def test_only_what_has_to_be_decoded_costs_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.current_thread().name
    assert threads_of(made_up_dataset(), monkeypatch) == {here}
    files = folder(tmp_path)
    assert threads_of(files, monkeypatch) == {"decode"}
    # As a user's own rows are, which may be bound to the thread that opened them.
    monkeypatch.setattr(type(files.rows), "concurrent", False)
    assert threads_of(files, monkeypatch) == {here}


def test_a_broken_file_is_named_when_its_batch_is_due(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    (tmp_path / "b" / "19.png").write_bytes(b"no image")
    told = list[tuple[int, int]]()
    batches = Batches(dataset, IMAGE, CPU, 8, lambda done, total: told.append((done, total)))
    with pytest.raises(DataError, match=r"19\.png"):
        list(batches)
    assert told == [(8, 20), (16, 20)]
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]
