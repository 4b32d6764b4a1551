import hashlib
from dataclasses import replace

import pytest
import torch

from lipt.common.config.run_config import LearnersConfig
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.core.planning import (
    PROCESS_BYTES,
    THREAD_BYTES,
    Limit,
    Part,
    PlannedCost,
    learner_images,
    learner_memory,
    violation,
)
from lipt.models.footprint import ModelFigures

MB = 10**6


def memory(*parts: Part) -> PlannedCost:
    return PlannedCost("memory of a worker", "bytes", parts)


def test_over_limit_error_names_the_largest_part_and_the_largest_fitting_value() -> None:
    cost = memory(Part("", 1, 10 * MB, "its process"), Part("a.size", 100, MB, "a batch"))
    limit = Limit("limits.m", 50 * MB)
    found = violation(cost, limit)
    assert found is not None
    assert (found.knob, found.times) == ("a.size", 2.2)
    assert found.sentence == (
        "a.size = 100: memory of a worker comes to 110.0 MB, 100.0 MB of it for a batch, over "
        "limits.m = 50.0 MB. Lower a.size to at most 40, or raise limits.m."
    )
    assert violation(memory(cost.parts[0], Part("a.size", 40, MB, "a batch")), limit) is None


@pytest.mark.parametrize(
    ("parts", "remedy"),
    [
        # Not even the lowest value fits beside the rest.
        ((Part("a", 2, 60, "x"), Part("b", 1, 50, "y")), "Choose a lower a, a lower b, or raise m"),
        # Or it may be none at all.
        ((Part("a", 2, 60, "x", 0), Part("b", 1, 50, "y")), "Lower a to at most 0, or raise m"),
        # What it is set to is no number that costs.
        (
            (Part("model", 5, 60, "copies", None, "resnet18"), Part("b", 1, 50, "y")),
            "Choose a smaller model, a lower b, or raise m",
        ),
        ((Part("", 2, 60, "x"), Part("b", 0, 50, "y")), "Raise m"),
    ],
)
def test_over_limit_error_without_a_fitting_value(parts: tuple[Part, ...], remedy: str) -> None:
    found = violation(memory(*parts), Limit("m", 100))
    assert found is not None
    assert found.sentence.endswith(f" {remedy}.")


FIGURES = ModelFigures(weights_bytes=100, training_bytes=1000, evaluation_bytes=300)


def test_memory_and_images_of_a_learner_are_counted() -> None:
    learners = LearnersConfig(
        num_minibatches=3, batch_size=4, num_steps=9, num_snapshots=7, cpu_threads=2
    )
    cost = learner_memory(learners, "mine", FIGURES, example_bytes=12)
    assert cost.total == (
        PROCESS_BYTES
        + 5 * 100
        # 6 bytes a pixel: before and after augmentation, and as a number; and 3 of those ahead.
        + 4 * (1000 + 6 * 12 + 3 * 12)
        # The file and its images.
        + 3 * 4 * 12 * 2
        + 7 * 100
        + 2 * THREAD_BYTES
    )
    settings = ("batch_size", "num_minibatches", "num_snapshots", "cpu_threads")
    knobs = [part.knob for part in cost.parts if part.knob]
    assert knobs == ["model", *(f"learners.{name}" for name in settings)]
    for batch_size, counted in ((100, 100), (1, 64)):
        learners = LearnersConfig(num_minibatches=2, batch_size=batch_size, max_attempts=3)
        assert learner_images(learners).total == 10 * 2 * counted * 3
    learners = LearnersConfig(num_steps=9, num_snapshots=7)
    kinds = [replace(FIGURES, frozen_bytes=size) for size in (0, 40)]
    whole, parts = (
        learner_memory(learners, "mine", figures, example_bytes=12).total for figures in kinds
    )
    assert whole - parts == (3 + 7) * 40


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
