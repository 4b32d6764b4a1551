from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.run_config import LearnersConfig, PruningConfig, ShardRule, ValidationConfig
from lipt.common.errors import ConfigError
from lipt.core.pretraining.sharding import (
    NUM_HALVES,
    draw_by_shares,
    draw_densities,
    draw_shards,
    draw_shards_by_source,
    fit_defaults,
    num_validation_examples,
    require_shards_fit,
    split_validation,
)


def labels_of(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def learners(num_learners: int, num_minibatches: int, batch_size: int) -> LearnersConfig:
    return LearnersConfig(
        num_learners=num_learners, num_minibatches=num_minibatches, batch_size=batch_size
    )


def test_each_class_gives_its_rounded_share_within_its_limits() -> None:
    # 10% of 25 is 2.5, rounded up to 3; of 10 it is 1, raised to 2; of 3 at most 3 // 2 = 1;
    # 1 // 2 = 0.
    labels_N = labels_of(25, 10, 3, 1)
    split = split_validation(labels_N, ValidationConfig(fraction=0.1, min_per_class=2), seed=0)
    assert labels_N[split.validation_ids].bincount(minlength=4).tolist() == [3, 2, 1, 0]


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.5),
    min_per_class=st.integers(1, 20),
    seed=st.integers(0, 2**63 - 1),
)
def test_split_is_an_ascending_partition_of_a_known_size(
    counts: list[int], fraction: float, min_per_class: int, seed: int
) -> None:
    labels_N = labels_of(*counts)
    config = ValidationConfig(fraction=fraction, min_per_class=min_per_class)
    size = num_validation_examples(counts, config)
    if size == 0:
        with pytest.raises(ConfigError, match="no class has 2 examples"):
            split_validation(labels_N, config, seed=seed)
        return
    split = split_validation(labels_N, config, seed=seed)
    train, validation = split.train_ids.tolist(), split.validation_ids.tolist()
    assert sorted(train + validation) == list(range(len(labels_N)))
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert len(validation) == size


def test_split_depends_on_the_seed_and_differs_among_classes_of_one_size() -> None:
    config = ValidationConfig(fraction=0.2, min_per_class=1)
    one, same, other = (
        split_validation(labels_of(50, 50), config, seed=seed).validation_ids for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    first, second = one.view(2, 10)
    assert not torch.equal(first, second - 50)


def test_shards_are_disjoint_and_do_not_depend_on_their_number() -> None:
    train_ids = torch.arange(0, 200, 2)
    shards = draw_shards(train_ids, learners(4, 5, 5), seed=3)
    assert [len(shard) for shard in shards] == [25] * 4
    assert torch.cat(shards).sort().values.tolist() == train_ids.tolist()
    train_ids = torch.arange(100)
    few, other = (draw_shards(train_ids, learners(2, 1, 10), seed=seed) for seed in (3, 4))
    many = draw_shards(train_ids, learners(9, 1, 10), seed=3)
    assert all(torch.equal(a, b) for a, b in zip(few, many[:2], strict=True))
    assert not torch.equal(torch.cat(few), torch.cat(other))
    pruning = PruningConfig(density_min=0.8, density_max=0.9)
    assert draw_densities(9, pruning, seed=3)[:2] == draw_densities(2, pruning, seed=3)
    assert draw_densities(2, pruning, seed=3) != draw_densities(2, pruning, seed=4)


def test_shards_use_at_most_the_training_split() -> None:
    draw_shards(torch.arange(60), learners(3, 2, 10), seed=0)
    with pytest.raises(
        ConfigError,
        match=r"3 learners x 2 minibatches x 10 examples = 60 examples, but the training split "
        r"has 59\. Lower learners\.batch_size to at most 9, or learners\.num_learners to at most 2",
    ):
        draw_shards(torch.arange(59), learners(3, 2, 10), seed=0)
    with pytest.raises(ConfigError, match=r"Lower learners.batch_size to at most 16\.$"):
        require_shards_fit(50, learners(3, 1, 100))
    with pytest.raises(ConfigError, match="batch_size together"):
        require_shards_fit(2, learners(3, 1, 100))


@given(bounds=st.tuples(st.floats(0.001, 1.0), st.floats(0.001, 1.0)), seed=st.integers(0, 2**32))
def test_densities_stay_in_their_range(bounds: tuple[float, float], seed: int) -> None:
    low, high = sorted(bounds)
    drawn = draw_densities(5, PruningConfig(density_min=low, density_max=high), seed=seed)
    assert all(low <= density <= high for density in drawn)


def test_densities_are_uniform() -> None:
    # Mean of 2,000 draws from [0.85, 0.95]: deviation 0.1 / sqrt(12 * 2000) = 0.00065.
    pruning = PruningConfig(density_min=0.85, density_max=0.95)
    densities = torch.tensor(draw_densities(2000, pruning, seed=0), dtype=torch.float64)
    assert abs(densities.mean().item() - 0.9) < 0.0026
    quarters = torch.histc(densities, bins=4, min=0.85, max=0.95)
    # 500 each, deviation sqrt(2000 * 1/4 * 3/4) = 19.4.
    assert ((quarters - 500).abs() < 78).all()


def sizes_of(found: LearnersConfig) -> tuple[int, int, int, int]:
    return found.num_learners, found.num_minibatches, found.batch_size, found.min_learners


@pytest.mark.parametrize(
    ("num_train", "asked", "expected"),
    [
        # The batch shrinks first, then there are fewer minibatches, then fewer learners.
        (4095, {}, (2, 32, 63, 1)),  # 4095 // (2 x 32)
        (1024, {}, (2, 32, 16, 1)),
        (1023, {}, (2, 31, 16, 1)),  # 1023 // (2 x 16)
        (63, {}, (2, 1, 16, 1)),
        (31, {}, (1, 1, 16, 1)),
        (15, {}, (1, 1, 15, 1)),
        (1, {}, (1, 1, 1, 1)),
        # What was asked for is left alone.
        (1597, {"batch_size": 256}, (2, 3, 256, 1)),  # 1597 // (2 x 256)
        (1597, {"num_learners": 40}, (40, 2, 16, 1)),  # 1597 // (40 x 16)
        (1597, {"num_minibatches": 20}, (2, 20, 39, 1)),  # 1597 // (2 x 20)
        (1597, {"num_minibatches": 60}, (1, 60, 16, 1)),  # 1597 // (60 x 16)
        (300, {"num_learners": 10, "batch_size": 32}, (10, 1, 32, 1)),  # too large: refused later
        (31, {"min_learners": 2}, (2, 1, 16, 2)),
    ],
)
def test_defaults_shrink_to_a_small_data_set(
    num_train: int, asked: dict[str, Any], expected: tuple[int, int, int, int]
) -> None:
    learners, _ = fit_defaults(LearnersConfig(**asked), num_train, sources=(), fixed=asked)
    assert sizes_of(learners) == expected


def test_an_operator_s_learners_shrink_last() -> None:
    operators = LearnersConfig(num_learners=10, num_minibatches=4, min_learners=5)
    # Learners of one minibatch: 50 // 16, five as asked for, 100 // 16.
    for num_train, fixed, expected in (
        (50, set(), (3, 1, 16, 3)),
        (50, {"min_learners"}, (5, 1, 16, 5)),
        (100, {"min_learners"}, (6, 1, 16, 5)),
    ):
        found, _ = fit_defaults(operators, num_train, sources=(), fixed=fixed)
        assert sizes_of(found) == expected
    assert fit_defaults(LearnersConfig(), 4096, sources=(), fixed=()) == (LearnersConfig(), "")
    # 24 = 1597 // (2 x 32).
    assert fit_defaults(LearnersConfig(), 1597, sources=(), fixed=())[1] == (
        "2 learners x 32 minibatches x 64 examples = 4096 are more than the 1597 of the training "
        "split, so defaults were lowered to fit: learners.batch_size 24 in place of 64"
    )


def test_a_small_source_is_drawn_again_only_once_it_is_used_up() -> None:
    sources, generator = [torch.arange(3), torch.arange(10, 30)], torch.Generator().manual_seed(0)
    drawn = draw_by_shares(sources, torch.tensor([0.5, 0.5]).double(), 14, generator=generator)
    counts = drawn.bincount(minlength=30)
    assert sorted(counts[:3].tolist()) == [2, 2, 3]
    assert counts[10:].sum() == 7
    assert counts[10:].max() == 1


def test_learners_by_source_see_their_source_alone_and_share_none_of_a_large_one() -> None:
    sources = {"large": torch.arange(100, 140), "small": torch.arange(5)}
    settings = learners(4, 2, 8).model_copy(update={"shards": ShardRule.SOURCE})
    large, small, large_again, small_again = draw_shards_by_source(sources, settings, seed=3)
    assert len({*large.tolist(), *large_again.tolist()}) == 32
    assert min(large.min(), large_again.min()) >= 100
    assert {*small.tolist()} | {*small_again.tolist()} == set(range(5))
    assert [len(ids) for ids in (small, small_again)] == [16, 16]


def test_there_are_two_learners_of_each_source_and_all_are_needed() -> None:
    asked = LearnersConfig(shards=ShardRule.SOURCE)
    found, changes = fit_defaults(asked, 10, sources=("a", "b", "c"), fixed={"shards"})
    assert (found.num_learners, found.min_learners, changes) == (3 * NUM_HALVES, 6, "")
    with pytest.raises(ConfigError, match=r"names no sources\. Name their column"):
        fit_defaults(asked, 10, sources=(), fixed=())
    with pytest.raises(ConfigError, match=r"is 2, and 3 sources have 2 learners each, 6"):
        fit_defaults(asked, 10, sources=("a", "b", "c"), fixed={"num_learners"})
