"""What is counted, against the code that does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from lipt.common.config.run_config import (
    PruningMethod,
    RunConfig,
    SoupMethod,
    SoupSearch,
    WeightEncoding,
)
from lipt.common.config.validation import validate
from lipt.common.data import open_dataset
from lipt.common.data.shard import pack_shard
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.specs import copy_to_cpu, specs_of
from lipt.core.evaluation import Scored
from lipt.core.learner.pruning import PruningInputs, prunable_parameters, prune
from lipt.core.sharding import draw_shards, split_validation
from lipt.core.soup import OpenWeights, greedy_soup, uniform_soup
from lipt.estimates.counting import (
    Machine,
    Subject,
    count_run,
    learners_at_once,
    num_evaluations,
    num_trained_images,
    result_bytes,
)
from lipt.estimates.subject import subject_of
from lipt.estimates.work import Range, Stage, Task, exactly

ONE_WORKER = Machine(num_workers=1, num_cores=1, process_bytes=0)


def run_config(**groups: Mapping[str, Any]) -> RunConfig:
    return validate(RunConfig, {"model": "resnet8", **groups})


def digits_subject(config: RunConfig) -> Subject:
    dataset = open_dataset("digits")
    model = build_model(config.model, num_classes=10, inputs=dataset.inputs, seed=0)
    return subject_of(dataset, model, config, batch_size=64)


def stages(config: RunConfig, machine: Machine = ONE_WORKER) -> dict[str, Stage]:
    return {stage.name: stage for stage in count_run(config, digits_subject(config), machine)}


def test_learners_train_on_as_many_images_as_the_benchmarks_say() -> None:
    # 10 x 1 x 10 x 256.
    assert num_trained_images(run_config()) == 25_600


def test_snip_looks_at_one_more_minibatch_a_learner() -> None:
    config = run_config(pruning={"method": PruningMethod.SNIP})
    assert num_trained_images(config) == 25_600 + 10 * 256


def test_a_second_attempt_for_each_learner_counts() -> None:
    assert num_trained_images(run_config(learners={"redundancy": 2})) == 2 * 25_600


@pytest.mark.parametrize("search", SoupSearch)
@pytest.mark.parametrize("helps", [True, False])
@pytest.mark.parametrize(("num_learners", "num_alphas"), [(1, 10), (4, 1), (5, 4), (10, 10)])
def test_a_greedy_soup_evaluates_within_what_is_counted(
    search: SoupSearch, num_learners: int, num_alphas: int, *, helps: bool
) -> None:
    scored = 0

    def evaluate(weights: Sequence[OpenWeights], _floor: float) -> Iterator[Scored]:
        nonlocal scored
        for _ in weights:
            scored += 1
            yield Scored(scored / 1000 if helps else 0.5, {})

    learners = [lambda: {"w": torch.zeros(1)}] * num_learners
    greedy_soup(
        learners, evaluate, num_alphas=num_alphas, search=search, on_progress=lambda *_: None
    )
    config = run_config(
        learners={"num_learners": num_learners},
        soup={"num_alphas": num_alphas, "search": search},
    )
    counted = num_evaluations(config)
    # theta* is scored once before.
    assert counted.low <= scored + 1 <= counted.high
    if search is SoupSearch.GRID:
        assert counted == exactly(scored + 1)
    elif not helps:
        assert counted.low == scored + 1


def test_a_uniform_soup_evaluates_as_often_as_is_counted() -> None:
    scored = 0

    def evaluate(weights: Sequence[OpenWeights], _floor: float) -> Iterator[Scored]:
        nonlocal scored
        for _ in weights:
            scored += 1
            yield Scored(0.5, {})

    uniform_soup([lambda: {"w": torch.zeros(1)}] * 4, evaluate, on_progress=lambda *_: None)
    config = run_config(learners={"num_learners": 4}, soup={"method": SoupMethod.UNIFORM})
    assert num_evaluations(config) == exactly(scored + 1)


@pytest.mark.parametrize("model", ["resnet8", "resnet18"])
@pytest.mark.parametrize("density", [0.1, 0.85, 0.95, 1.0])
def test_a_result_is_as_large_as_what_is_sent(model: str, density: float) -> None:
    network = build_model(model, num_classes=10, inputs=ImageSpec(3, 32, 32), seed=0)
    state = copy_to_cpu(network.state_dict())
    parameters = prunable_parameters(network)
    inputs = PruningInputs(
        {name: parameter.detach() for name, parameter in parameters.items()},
        dict,
        torch.Generator(),
    )
    pruned = state | prune(PruningMethod.RANDOM, inputs, density)
    sent = len(encode_weights(pruned, WeightEncoding.BITMASK))
    counted = result_bytes(specs_of(state), tuple(parameters), density, WeightEncoding.BITMASK)
    assert counted == pytest.approx(sent, rel=0.04)


def test_shards_are_as_large_as_those_that_are_cut() -> None:
    config = run_config(learners={"num_learners": 3, "num_minibatches": 2, "batch_size": 40})
    dataset = open_dataset("digits")
    split = split_validation(dataset.labels_N, config.validation, seed=0)
    shards = draw_shards(split.train_ids, config.learners, seed=0)
    cut = sum(len(pack_shard(dataset, ids)) for ids in shards)
    assert stages(config)["shards"].disk_bytes == pytest.approx(cut, rel=0.02)


def test_every_evaluation_looks_at_the_validation_split_and_what_statistics_are_of() -> None:
    config = run_config(
        learners={"num_learners": 3, "batch_size": 16},
        soup={"num_alphas": 4, "batch_norm_examples": 100},
    )
    # theta*, 3 alone, 2 x 3 mixtures; 20 of each of 10 classes are held out.
    assert stages(config)["soup"].work[Task.EVALUATING] == exactly(10 * (200 + 100))


def test_nothing_is_trained_for_a_random_theta_star() -> None:
    assert Task.TRAINING not in stages(run_config(learners={"batch_size": 100}))["theta*"].work


def test_theta_star_is_trained_for_as_many_images_as_its_steps_take() -> None:
    config = run_config(learners={"batch_size": 100}, initialization={"steps": 7, "batch_size": 50})
    assert stages(config)["theta*"].work[Task.TRAINING] == exactly(350)


@pytest.mark.parametrize(
    ("workers", "cores", "at_once"),
    [
        (1, None, 1.0),
        # Of ten, four at a time: three rounds.
        (4, None, 10 / 3),
        (20, None, 10.0),
        # Two cores do not train four at a time.
        (4, 2, 2.0),
    ],
)
def test_workers_train_side_by_side_as_far_as_there_are_cores(
    workers: int, cores: int | None, at_once: float
) -> None:
    machine = Machine(workers, cores, process_bytes=0)
    assert learners_at_once(10, machine, threads=1) == pytest.approx(at_once)


def test_snapshots_travel_as_well() -> None:
    learners = {"num_learners": 4, "num_steps": 3, "batch_size": 16}
    without = stages(run_config(learners=learners))["learners"]
    with_two = stages(run_config(learners={**learners, "num_snapshots": 2}))["learners"]
    # Not pruned: a little larger than a result.
    assert with_two.disk_bytes > 3 * without.disk_bytes


def test_seconds_are_work_times_rate_and_unknown_without_one() -> None:
    stage = Stage(
        "learners",
        next(iter(stages(run_config(learners={"batch_size": 100})).values())).where,
        {Task.TRAINING: exactly(100)},
        one_of=({Task.MIXING: exactly(1)}, {Task.MIXING: Range(2, 3)}),
        at_once=2.0,
    )
    rates = {Task.TRAINING: Range(0.1, 0.2), Task.MIXING: exactly(10.0)}
    # (100 x 0.1 + 1 x 10) / 2, and (100 x 0.2 + 3 x 10) / 2.
    assert stage.seconds(rates) == Range(10.0, 25.0)
    assert stage.seconds({Task.TRAINING: exactly(1.0)}) is None
