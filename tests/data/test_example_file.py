import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lipt
from lipt.common.errors import DataError
from lipt.common.tensor_files import pack, read_container
from lipt.data.dataset import Dataset
from lipt.data.example_file import open_examples, pack_examples

FACTS: dict[str, Any] = {"names": ["no", "yes"], "kind": "class", "num_given": 3}


def images(number: int, size: int = 8) -> Dataset:
    pixels = np.arange(number * 3 * size * size, dtype=np.uint8).reshape(number, 3, size, size)
    return lipt.open_dataset((pixels, torch.arange(number) % 2))


POOL = lipt.open_dataset((torch.rand(6, 2), ["no", "yes"] * 3))
PIXELS = images(4)


def file(facts: Any = FACTS, **changed: torch.Tensor) -> bytes:
    tensors = {"column.": torch.rand(3, 2), "labels": torch.tensor([0, 1, 1])} | changed
    return pack(tensors, {"lipt.examples": json.dumps(facts)})


def test_a_file_has_the_tensors_of_a_shard_and_the_facts() -> None:
    container = read_container(
        pack_examples(PIXELS, 9), max_bytes=10**6, max_tensors=4, max_metadata_bytes=1000
    )
    assert {name: spec.shape for name, spec in container.specs.items()} == {
        "images": (4, 3, 8, 8),
        "labels": (4,),
    }
    assert json.loads(container.metadata["lipt.examples"]) == {
        "names": ["0", "1"],
        "kind": "class",
        "flagged": False,
        "num_given": 9,
    }


@pytest.mark.parametrize(
    "dataset",
    [
        PIXELS,
        POOL,
        lipt.open_dataset((torch.rand(4, 2), torch.tensor([0.5, 1, 2, 3.5]))),
        lipt.open_dataset((torch.rand(4, 2), torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]]))),
    ],
    ids=["images", "classes", "numbers", "labels"],
)
def test_what_is_packed_is_read_back(dataset: Dataset) -> None:
    found, num_given = open_examples(pack_examples(dataset, 20), dataset, max_examples=10)
    assert num_given == 20
    assert found.fingerprint == dataset.fingerprint
    assert torch.equal(found.targets_N, dataset.targets_N)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pack({"labels": torch.zeros(2, dtype=torch.int64)}), "no description"),
        (file({**FACTS, "kind": "animals"}), "no description"),
        (file({**FACTS, "more": 1}), "no description"),
        (file([]), "no description"),
        (file({**FACTS, "names": []}), "targets with 0 names"),
        (file({**FACTS, "kind": "tokens"}), "next-token targets"),
        (file(labels=torch.tensor([0, 1, 2])), "outside 0..1"),
        (file(labels=torch.zeros(0, dtype=torch.int64)), "0 examples; from 1 to 5"),
        (file(labels=torch.zeros(6, dtype=torch.int64)), "6 examples; from 1 to 5"),
        (file(**{"column.": torch.rand(2, 2)}), "instead of"),
        (file(**{"column.": torch.tensor([[1.0, torch.nan]] * 3)}), "not finite"),
        (file(**{"column.more": torch.rand(3, 2)}), "instead of missing"),
        (
            pack(
                {"labels": torch.zeros(3, dtype=torch.int64)}, {"lipt.examples": json.dumps(FACTS)}
            ),
            "no column ''",
        ),
    ],
    # Bytes of a file have no fixed order.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_content_is_refused_in_a_sentence(content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_examples(content, POOL, max_examples=5)


def test_images_of_another_size_than_the_pools_are_refused() -> None:
    with pytest.raises(DataError, match="instead of"):
        open_examples(pack_examples(images(4, 9), 4), PIXELS, max_examples=10)


@given(st.data())
def test_damaged_bytes_give_an_error_or_examples(data: st.DataObject) -> None:
    content = bytearray(file())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found, _ = open_examples(bytes(content), POOL, max_examples=5)
    except DataError:
        return
    assert len(found) == 3
