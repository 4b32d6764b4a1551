from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Inputs
from lipt.coordinator.signals.batches import Batches
from tests.coordinator.signals.made_up import CPU, IMAGE, made_up_dataset


def tensor(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)
    return inputs


def test_batches_are_the_examples_in_order_and_progress_is_told_after_each() -> None:
    dataset, told = made_up_dataset(20), list[tuple[int, int]]()
    seen = []
    for rows, inputs_BCHW, labels_B in Batches(
        dataset, IMAGE, CPU, 8, lambda done, total: told.append((done, total))
    ):
        seen.append(rows)
        assert len(told) == len(seen) - 1
        images_BCHW = dataset.images(torch.arange(rows.start, rows.stop))
        assert torch.equal(tensor(inputs_BCHW), tensor(to_model_input(images_BCHW, IMAGE, CPU)))
        assert torch.equal(labels_B, dataset.labels_N[rows])
    assert seen == [slice(0, 8), slice(8, 16), slice(16, 20)]
    assert told == [(8, 20), (16, 20), (20, 20)]


def test_some_examples_come_in_the_order_given() -> None:
    dataset, told = made_up_dataset(), list[tuple[int, int]]()
    ids = torch.tensor([31, 4, 17])
    batches = Batches(dataset, IMAGE, CPU, 2, lambda done, total: told.append((done, total)), ids)
    assert len(batches) == 3
    labels = torch.cat([labels_B for _, _, labels_B in batches])
    assert torch.equal(labels, dataset.labels_N[ids])
    inputs = torch.cat([tensor(inputs_BCHW) for _, inputs_BCHW, _ in batches])
    assert torch.equal(inputs, tensor(to_model_input(dataset.images(ids), IMAGE, CPU)))
    assert told == [(2, 3), (3, 3)] * 2
