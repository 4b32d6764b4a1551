import pytest
import torch

from benchmarks.poisoner import TARGET, backdoored, permuted, with_patch
from lipt.common.data.shard import Shard
from lipt.common.inputs.model_input import images_in
from tests.worker.fake_client import TASK

pytestmark = pytest.mark.slow


def shard() -> Shard:
    return Shard(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([3, 4, 5, 9]))


def test_attacks_by_hand() -> None:
    images_NCHW = images_in(shard().examples)
    patched_NCHW = with_patch(images_NCHW)
    assert int((patched_NCHW == 255).sum()) == 4 * 2 * 2
    assert bool((patched_NCHW[:, :, 6:, 6:] == 255).all())
    assert int(images_NCHW.sum()) == 0
    task, made = backdoored(TASK, shard())
    assert task == TASK
    assert made.targets_N.tolist() == [TARGET, 4, TARGET, 9]
    assert images_in(made.examples).flatten(1).any(dim=1).tolist() == [True, False, True, False]
    assert permuted(TASK, shard())[1].targets_N.tolist() == [4, 5, 6, 0]
