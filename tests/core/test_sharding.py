from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.run_config import LearnersConfig, PruningConfig, ValidationConfig
from lipt.common.errors import ConfigError
from lipt.core.sharding import (
    draw_densities,
    draw_shards,
    num_validation_examples,
    require_shards_fit,
    split_validation,
)


def labels_of(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def test_each_class_gives_its_rounded_share_within_its_limits() -> None:
    # 10% of 25 is 2.5, rounded up to 3; of 10 it is 1, raised to 2; of 3 at most 3 // 2 = 1;
    # 1 // 2 = 0.
    labels_N = labels_of(25, 10, 3, 1)
    split = split_validation(labels_N, ValidationConfig(fraction=0.1, min_per_class=2), seed=0)
    assert labels_N[split.validation_ids].bincount(minlength=4).tolist() == [3, 2, 1, 0]


def test_validation_size_is_known_before_the_labels_are_read() -> None:
    assert (
        num_validation_examples([25, 10, 3, 1, 0], ValidationConfig(fraction=0.1, min_per_class=2))
        == 6
    )


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.5),
    min_per_class=st.integers(1, 20),
    seed=st.integers(0, 2**63 - 1),
)
def test_split_is_a_partition_and_ascending(
    counts: list[int], fraction: float, min_per_class: int, seed: int
) -> None:
    labels_N = labels_of(*counts)
    size = num_validation_examples(
        counts, ValidationConfig(fraction=fraction, min_per_class=min_per_class)
    )
    if size == 0:
        with pytest.raises(ConfigError, match="no class has 2 examples"):
            split_validation(
                labels_N,
                ValidationConfig(fraction=fraction, min_per_class=min_per_class),
                seed=seed,
            )
        return
    split = split_validation(
        labels_N, ValidationConfig(fraction=fraction, min_per_class=min_per_class), seed=seed
    )
    train, validation = split.train_ids.tolist(), split.validation_ids.tolist()
    assert sorted(train + validation) == list(range(len(labels_N)))
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert len(validation) == size


def test_split_depends_on_the_seed_alone() -> None:
    labels_N = labels_of(50, 50)
    splits = [
        split_validation(labels_N, ValidationConfig(fraction=0.2, min_per_class=1), seed=seed)
        for seed in (1, 1, 2)
    ]
    assert torch.equal(splits[0].validation_ids, splits[1].validation_ids)
    assert not torch.equal(splits[0].validation_ids, splits[2].validation_ids)


def test_classes_of_one_size_hold_out_different_positions() -> None:
    split = split_validation(
        labels_of(50, 50), ValidationConfig(fraction=0.2, min_per_class=1), seed=1
    )
    first, second = split.validation_ids.view(2, 10)
    assert not torch.equal(first, second - 50)


def test_shards_and_densities_depend_on_the_seed() -> None:
    learners = LearnersConfig(num_learners=2, num_minibatches=1, batch_size=10)
    one, same, other = (draw_shards(torch.arange(100), learners, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.cat(one), torch.cat(same))
    assert not torch.equal(torch.cat(one), torch.cat(other))
    pruning = PruningConfig(density_min=0.8, density_max=0.9)
    assert draw_densities(2, pruning, seed=1) == draw_densities(2, pruning, seed=1)
    assert draw_densities(2, pruning, seed=1) != draw_densities(2, pruning, seed=2)


def test_shards_are_disjoint_and_from_the_training_split() -> None:
    train_ids = torch.arange(0, 200, 2)
    shards = draw_shards(
        train_ids, LearnersConfig(num_learners=4, num_minibatches=5, batch_size=5), seed=3
    )
    assert [len(shard) for shard in shards] == [25] * 4
    assert torch.cat(shards).sort().values.tolist() == train_ids.tolist()


def test_first_shards_and_densities_do_not_depend_on_the_number_of_learners() -> None:
    train_ids = torch.arange(100)
    few = draw_shards(
        train_ids, LearnersConfig(num_learners=2, num_minibatches=1, batch_size=10), seed=3
    )
    many = draw_shards(
        train_ids, LearnersConfig(num_learners=9, num_minibatches=1, batch_size=10), seed=3
    )
    assert all(torch.equal(a, b) for a, b in zip(few, many[:2], strict=True))
    assert draw_densities(9, PruningConfig(density_min=0.8, density_max=0.9), seed=3)[
        :2
    ] == draw_densities(2, PruningConfig(density_min=0.8, density_max=0.9), seed=3)


def test_the_whole_training_split_can_be_used_and_one_example_more_cannot() -> None:
    draw_shards(
        torch.arange(60), LearnersConfig(num_learners=3, num_minibatches=2, batch_size=10), seed=0
    )
    with pytest.raises(
        ConfigError,
        match=r"3 learners x 2 minibatches x 10 examples = 60 examples, but the training split "
        r"has 59\. Lower learners\.batch_size to at most 9, or learners\.num_learners to at most 2",
    ):
        draw_shards(
            torch.arange(59),
            LearnersConfig(num_learners=3, num_minibatches=2, batch_size=10),
            seed=0,
        )


def test_a_remedy_that_cannot_help_is_not_given() -> None:
    with pytest.raises(ConfigError) as refusal:
        require_shards_fit(50, LearnersConfig(num_learners=3, num_minibatches=1, batch_size=100))
    assert "Lower learners.batch_size to at most 16." in refusal.value.message
    with pytest.raises(ConfigError, match="batch_size together"):
        require_shards_fit(2, LearnersConfig(num_learners=3, num_minibatches=1, batch_size=100))


@given(bounds=st.tuples(st.floats(0.001, 1.0), st.floats(0.001, 1.0)), seed=st.integers(0, 2**32))
def test_densities_stay_in_their_range(bounds: tuple[float, float], seed: int) -> None:
    low, high = sorted(bounds)
    assert all(
        low <= density <= high
        for density in draw_densities(
            5, PruningConfig(density_min=low, density_max=high), seed=seed
        )
    )


def test_densities_are_uniform() -> None:
    # Mean of 2,000 draws from [0.85, 0.95]: deviation 0.1 / sqrt(12 * 2000) = 0.00065.
    densities = torch.tensor(
        draw_densities(2000, PruningConfig(density_min=0.85, density_max=0.95), seed=0),
        dtype=torch.float64,
    )
    assert abs(densities.mean().item() - 0.9) < 0.0026
    quarters = torch.histc(densities, bins=4, min=0.85, max=0.95)
    # 500 each, deviation sqrt(2000 * 1/4 * 3/4) = 19.4.
    assert ((quarters - 500).abs() < 78).all()


def test_one_density_is_exact() -> None:
    assert draw_densities(3, PruningConfig(density_min=0.9, density_max=0.9), seed=1) == (
        0.9,
        0.9,
        0.9,
    )
