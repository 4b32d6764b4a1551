"""Main training against a live coordinator: subsets that change while a model trains."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from lipt.common.data import open_dataset
from lipt.common.models import build_model
from lipt.trainer import Client, ReselectingSampler


@pytest.mark.smoke
def test_training_with_workers_gets_new_subsets_as_it_goes(client: Client) -> None:
    digits = open_dataset("digits")
    model = build_model("resnet8", num_classes=10, inputs=digits.inputs, seed=0)
    sampler = ReselectingSampler(
        client, model, "grand", run="first", fraction=0.1, every=1, prefetch=True
    )
    reselection = sampler.reselection
    for persistent in (True, False):  # forks once, and before every epoch
        loader = DataLoader(
            digits,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            batch_size=64,
            sampler=sampler,
            num_workers=2,
            persistent_workers=persistent,
            timeout=120,  # a child that a fork has locked up fails, and does not hang
            multiprocessing_context="fork",
        )
        for epoch in (0, 1, 2) if persistent else (3, 4):
            sampler.set_epoch(epoch)  # the next one is asked for while the workers fork
            seen = [int(label) for batch in loader for label in batch["label"]]
            expected = digits.labels_N[torch.from_numpy(reselection.subset.indices.copy())]
            assert sorted(seen) == sorted(expected.tolist())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
    assert [selected.epoch for selected in reselection.history] == [1, 2, 3, 4]
    assert len({selected.digest for selected in reselection.history}) > 1
