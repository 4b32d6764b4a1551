import hashlib

import torch

from lipt.common.determinism import derive_generator, derive_seed, seeded_generators

CPU = torch.device("cpu")


def test_seeded_generators_are_restored() -> None:
    before = torch.get_rng_state()
    with seeded_generators(5, CPU):
        first = torch.rand(3)
    with seeded_generators(5, CPU):
        again = torch.rand(3)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_derived_seed_is_the_digest_of_run_seed_purpose_and_index() -> None:
    # What was drawn once is drawn again by every later version.
    digest = hashlib.sha256(b"7/shards/2").digest()
    assert derive_seed(7, "shards", 2) == int.from_bytes(digest[:8], "little") // 2
    assert derive_seed(7, "shards") == 9_047_641_675_233_264_261
    drawn = [(1, "a", 2), (2, "a", 2), (1, "b", 2), (1, "a", 1)]
    # Neither does a digit wander from one part to the next.
    drawn += [(12, "a", 3), (1, "2a", 3), (1, "a", 13), (1, "a1", 3)]
    seeds = {derive_seed(*each) for each in drawn}
    assert len(seeds) == len(drawn)
    assert all(0 <= seed < 2**63 for seed in seeds)
    expected = torch.Generator().manual_seed(derive_seed(3, "order", 1))
    values = torch.rand(4, generator=derive_generator(3, "order", 1))
    assert torch.equal(values, torch.rand(4, generator=expected))
