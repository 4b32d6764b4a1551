from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.footprint import ModelFigures
from lipt.common.subsets import Examples, pack
from lipt.coordinator.planning.plan import DataFigures
from lipt.core.proxies.proxy import Proxy
from lipt.core.selection.registry import find_strategy
from lipt.estimates.choosing import Choice, count_choice, parts_of
from lipt.estimates.counting import Machine, Subject
from lipt.estimates.work import Range, Stage, Task, exactly

MACHINE = Machine(num_workers=1, num_cores=1, process_bytes=0)
GIB = 2**30


def subject(
    num_examples: int = 1000, *, classes: int = 10, features: int = 64, size: int = 32
) -> Subject:
    return Subject(
        DataFigures((num_examples // classes,) * classes, ImageSpec(3, size, size)),
        ModelFigures(weights_bytes=0, trained_bytes=0, training_bytes=0, evaluation_bytes=0),
        sent={},
        prunable=(),
        num_features=features,
        pooled_features=5 * features,
        has_batch_norm=True,
        in_memory=True,
        packed_bytes=0.0,
        batch_size=64,
    )


def choice(name: str, budget: int = 100, **options: str) -> Choice:
    strategy = find_strategy(name)
    return Choice(
        strategy,
        strategy.parse_options(options),
        budget,
        strategy.resolve_balance(None),
        Proxy.parse(strategy.proxy),
        num_learners=10,
    )


def counted(asked: Choice, about: Subject) -> dict[str, Stage]:
    config = RunConfig()
    return {stage.name: stage for stage in count_choice(asked, config, about, MACHINE)}


def test_random_needs_no_signals() -> None:
    stage = counted(choice("uniform"), subject())["signals"]
    assert not stage.work
    assert stage.disk_bytes == 0


def test_signals_are_a_pass_over_all_examples() -> None:
    stage = counted(choice("el2n"), subject(5000))["signals"]
    assert stage.work == {Task.PASSING: exactly(5000)}
    # 5,000 x (10 errors + 64 features) in float32, and labels of eight bytes.
    assert stage.disk_bytes == 5000 * (4 * 74 + 8)
    assert stage.mapped_bytes == 0


def test_grand_by_all_parameters_takes_a_gradient_of_each_example() -> None:
    stage = counted(choice("grand", parameters="all"), subject(5000))["signals"]
    assert stage.work == {Task.DIFFERENTIATING: exactly(5000)}


def test_very_many_signals_are_in_mapped_files() -> None:
    # As docs/large-data.md has it: errors in half precision, features whole, 5.2 GB.
    about = subject(1_280_000, classes=1000, features=512, size=224)
    stage = counted(choice("grand"), about)["signals"]
    assert stage.mapped_bytes == 1_280_000 * (2 * 1000 + 4 * 512)
    assert stage.memory_bytes < GIB


def test_balanced_strategies_see_one_class_at_a_time() -> None:
    assert parts_of(choice("craig", 10), [30, 5, 1]) == [(30, 5), (5, 4), (1, 1)]
    assert parts_of(choice("uniform", 10), [30, 5, 1]) == [(36, 10)]


@pytest.mark.parametrize(
    ("num_examples", "bytes_of_pairs"),
    [
        # 24, 16 and 8 bits, as levels.py has them; then two rounds.
        (80_000, 4 * 8_000**2),
        (200_000, 2 * 20_000**2),
        (500_000, 50_000**2),
        (600_000, 2_750_000_000),
    ],
)
def test_pairs_of_a_class_take_what_their_levels_take(
    num_examples: int, bytes_of_pairs: int
) -> None:
    about = subject(num_examples, size=224)
    stage = counted(choice("craig"), about)["selection"]
    signals = 4 * (num_examples // 10) * 74
    assert stage.memory_bytes == bytes_of_pairs + signals


def test_auto_tries_every_proxy_and_may_take_any() -> None:
    stage = counted(choice("auto"), subject(50_000))["signals"]
    # The soup's features and ten learners', of 5,000.
    assert stage.work[Task.PASSING] == exactly(5_000 * 11)
    assert stage.work[Task.PATCHING] == exactly(5_000)
    passes = {one.get(Task.PASSING, exactly(0)).high for one in stage.one_of}
    assert passes == {0.0, 50_000.0, 500_000.0}


def test_of_a_small_set_nothing_is_tried_twice_but_a_head() -> None:
    stage = counted(choice("auto"), subject(1_000))["signals"]
    assert all(Task.PASSING not in one and Task.PATCHING not in one for one in stage.one_of)
    assert all(one[Task.SUMMING].low == 0 < one[Task.SUMMING].high for one in stage.one_of)


def test_a_proxy_that_is_named_is_not_tried() -> None:
    asked = replace(choice("auto"), proxy=Proxy.parse("ridge:patches"))
    stage = counted(asked, subject(20_000))["signals"]
    assert stage.work.keys() == {Task.LOOKING, Task.COMPARING}
    [alone] = stage.one_of
    assert alone[Task.PATCHING] == exactly(20_000)
    # A product of 2,048 columns with themselves, half of it; one with the vectors; a sample's.
    assert alone[Task.SUMMING] == Range(35_000 * 2048**2 / 1e9, 2 * 35_000 * 2048**2 / 1e9)


@pytest.mark.parametrize("budget", [10_000, 1_000])
def test_a_random_subset_travels_in_as_many_bytes(budget: int) -> None:
    generator = np.random.default_rng(0)
    indices = np.sort(generator.choice(100_000, budget, replace=False)).astype(np.int64)
    sent = len(pack(Examples(indices, np.ones(budget, np.float32))))
    told = counted(choice("uniform", budget), subject(100_000))["subset"].moved_bytes
    assert told == pytest.approx(sent, rel=0.25)
