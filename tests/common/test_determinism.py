import hashlib

import pytest
import torch

from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels, seeded_generators

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


def test_a_seed_is_the_digest_of_run_seed_purpose_and_index() -> None:
    # What was drawn once is drawn again by every later version.
    digest = hashlib.sha256(b"7/shards/2").digest()
    assert derive_seed(7, "shards", 2) == int.from_bytes(digest[:8], "little") // 2
    assert derive_seed(7, "shards") == 9_047_641_675_233_264_261


def test_run_seed_purpose_and_index_give_each_a_seed_of_its_own() -> None:
    drawn = [(1, "a", 2), (2, "a", 2), (1, "b", 2), (1, "a", 1)]
    # Neither does a digit wander from one part to the next.
    drawn += [(12, "a", 3), (1, "2a", 3), (1, "a", 13), (1, "a1", 3)]
    seeds = {derive_seed(*each) for each in drawn}
    assert len(seeds) == len(drawn)
    assert all(0 <= seed < 2**63 for seed in seeds)
    expected = torch.Generator().manual_seed(derive_seed(3, "order", 1))
    drawn = torch.rand(4, generator=derive_generator(3, "order", 1))
    assert torch.equal(drawn, torch.rand(4, generator=expected))
