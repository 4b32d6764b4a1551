from __future__ import annotations

import pytest
import torch

from lipt.common.determinism import pinned_kernels, seeded_generators

CPU = torch.device("cpu")


def test_threads_and_cudnn_come_back_even_after_an_error() -> None:
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    inside: list[tuple[int, bool]] = []

    def fail() -> None:
        with pinned_kernels(threads + 1):
            inside.append((torch.get_num_threads(), torch.backends.cudnn.deterministic))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [(threads + 1, True)]
    assert torch.get_num_threads() == threads
    assert torch.backends.cudnn.deterministic == deterministic


def test_threads_stay_when_they_do_not_matter() -> None:
    threads = torch.get_num_threads()
    with pinned_kernels():
        assert torch.get_num_threads() == threads


def test_global_draws_come_from_the_seed_and_the_generator_comes_back() -> None:
    before = torch.get_rng_state()
    with seeded_generators(5, CPU):
        first = torch.rand(3)
    with seeded_generators(5, CPU):
        again = torch.rand(3)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
