from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lipt import RepeatedRandomSampler, ReselectingSampler, SubsetSampler
from lipt.common.errors import ConfigError, SubsetError
from tests.trainer.integrations.conftest import BATCH, NUM_EXAMPLES, Loop, Model, Rows, subset_of
from tests.trainer.made_up import FakeClient

# What the frameworks say of workers and old interfaces is none of this test's business.
pytestmark = pytest.mark.filterwarnings(
    "ignore", "error::lipt.trainer.resampling.reselection.ReselectionWarning"
)

MakeSampler = Callable[..., ReselectingSampler]


def numbers(*subsets: int) -> list[list[int]]:
    return [subset_of(number).indices.tolist() for number in subsets]


def random() -> RepeatedRandomSampler:
    return RepeatedRandomSampler(NUM_EXAMPLES, budget=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_uses_its_current_subset(
    loop: Loop, make_sampler: MakeSampler, fake_client: FakeClient, workers: int
) -> None:
    model = Model()
    loop(model, make_sampler(model), 5, workers=workers)
    assert model.epochs() == numbers(0, 0, 1, 1, 2)
    assert model.seen[:8] != model.seen[8:16]  # the same examples in another order
    assert len(fake_client.asked) == 3


def test_checkpoints_resume(loop: Loop, make_sampler: MakeSampler, fake_client: FakeClient) -> None:
    whole, second = Model(), Model()
    loop(whole, make_sampler(whole, every=3), 7)
    asked = len(fake_client.asked)
    # This one's own first subset is not that of the checkpoint.
    loop(second, make_sampler(second, every=3), 7, resume=5)
    # Epoch 5 goes on with the subset of epoch 3, and at 6 one is due.
    assert second.seen[:8] == whole.seen[40:48]
    assert second.epochs() == numbers(1, asked + 1)
    assert fake_client.asked[-1]["previous"] == subset_of(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_checkpoint_keeps_the_order(loop: Loop, workers: int) -> None:
    whole, again = Model(), Model()
    loop(whole, random(), 8, workers=workers)
    # Every epoch has examples of its own.
    sampler = random()
    for epoch, seen in enumerate(whole.epochs()):
        sampler.set_epoch(epoch)
        assert sorted(sampler) == seen
    loop(again, random(), 8, resume=6, workers=workers)
    assert again.seen == whole.seen[48:]
    torch.testing.assert_close(again.net.state_dict(), whole.net.state_dict())


def test_no_subset_is_requested_after_the_last_epoch(
    loop: Loop, make_sampler: MakeSampler, fake_client: FakeClient
) -> None:
    model, again = Model(), Model()
    loop(model, make_sampler(model), 4)
    assert len(fake_client.asked) == 2
    # A finished training, too, announces the epoch that would follow.
    loop(again, make_sampler(again, first=subset_of(5)), 4, resume=4)
    assert not again.seen
    assert len(fake_client.asked) == 2


def test_lightning_logs_the_waiting_time(lightning: Loop, make_sampler: MakeSampler) -> None:
    model = Model()
    trainer = lightning(model, make_sampler(model), 3)
    assert trainer.callback_metrics["subset_waited_seconds"] > 0


def test_checkpoints_resume_its_epoch(huggingface: Loop, make_sampler: MakeSampler) -> None:
    first, second = Model(), Model()
    huggingface(first, make_sampler(first), 4, save_strategy="steps", save_steps=1)
    huggingface(second, make_sampler(second), 4, resume=2.5)
    assert second.seen[:12] == first.seen[20:32]


def test_an_incomplete_sampler_state_is_refused(
    huggingface: Loop, make_sampler: MakeSampler, tmp_path: Path
) -> None:
    from lipt.trainer.integrations.huggingface import SamplerStateWarning

    def run(**options: Any) -> None:
        model = Model()
        huggingface(model, make_sampler(model), 2, **options)

    run()
    path = tmp_path / "checkpoint-2" / "lipt-sampler.pt"
    state = torch.load(path, weights_only=True)
    path.unlink()
    with pytest.warns(SamplerStateWarning, match=r"lipt-sampler\.pt is missing"):
        run(resume=1)
    subset = state["reselection"]["subset"]
    state["reselection"]["subset"] = subset.replace("[0, 1", "[0, 2", 1)
    torch.save(state, path)
    with pytest.raises(SubsetError):
        run(resume=1)


def test_a_sampler_of_several_ranks_is_refused(huggingface: Loop) -> None:
    sampler = SubsetSampler(subset_of(0), rank=1, num_ranks=2)
    with pytest.raises(ConfigError, match=r"among 2 ranks.*without rank and num_r"):
        huggingface(Model(), sampler, 1)


def test_accelerate_needs_only_set_epoch(make_sampler: MakeSampler) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    model = Model()
    sampler = make_sampler(model)
    loader = DataLoader(Rows(), batch_size=BATCH, sampler=sampler)
    loader, prepared = accelerator.prepare(loader, model)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch in loader:
            prepared(**batch)
    assert model.epochs() == numbers(0, 0, 1, 1, 2)
