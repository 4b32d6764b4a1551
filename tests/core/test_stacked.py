"""What is evaluated together is what is evaluated one at a time, on the CPU and at tiny size."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.run_config import RunConfig, SoupSearch
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import Stored
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnType,
    InputFormat,
    spec_of,
)
from lipt.common.models import build_model
from lipt.common.models.head import frozen_names
from lipt.common.targets.values import MultiLabel, Regression, SingleLabel, Target
from lipt.common.weights.specs import Weights
from lipt.core.evaluation import Evaluator
from lipt.core.evaluators import Evaluators, StackedEvaluator, evaluate_for_soup
from lipt.core.soup import Evaluate, OpenWeights, greedy_soup
from tests.core.signals.made_up import made_up_network

NUM_EXAMPLES, NUM_CLASSES, BATCH_SIZE = 50, 3, 16
IMAGE = ImageFormat(3, 6, 6, mean=(0.5,) * 3, std=(0.25,) * 3)
NUMBERS = ColumnsFormat((ColumnFormat(Column("", ColumnType.FLOAT32, (5,))),))
TOKENS = ColumnsFormat((ColumnFormat(Column("", ColumnType.INT64, (7,), num_values=9)),))


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PIXELS = torch.randint(0, 256, (NUM_EXAMPLES, 3, 6, 6), generator=drawn(), dtype=torch.uint8)
EXAMPLES: dict[InputFormat, Stored] = {
    IMAGE: PIXELS,
    NUMBERS: {"": torch.randn(NUM_EXAMPLES, 5, generator=drawn())},
    TOKENS: {"": torch.randint(0, 9, (NUM_EXAMPLES, 7), generator=drawn())},
}
LABELS = torch.randint(0, NUM_CLASSES, (NUM_EXAMPLES,), generator=drawn(1))
TARGETS: dict[str, tuple[Target, Tensor]] = {
    "class": (SingleLabel(NUM_CLASSES), LABELS),
    "classes": (
        MultiLabel(NUM_CLASSES),
        torch.randint(0, 2, (NUM_EXAMPLES, NUM_CLASSES), generator=drawn(2), dtype=torch.uint8),
    ),
    "numbers": (
        Regression((0.0,) * NUM_CLASSES, (1.0,) * NUM_CLASSES),
        torch.randn(NUM_EXAMPLES, NUM_CLASSES, generator=drawn(3)),
    ),
}


def evaluator_of(
    model: nn.Module, inputs: InputFormat = IMAGE, kind: str = "class", **fields: Any
) -> Evaluator:
    target, targets_N = TARGETS[kind]
    examples: dict[str, Any] = {
        "examples_N": EXAMPLES[inputs],
        "batch_norm_examples_M": EXAMPLES[inputs],
        "batch_size": BATCH_SIZE,
        "device": "cpu",
    }
    return Evaluator(
        model=model,
        inputs=inputs,
        target=target,
        targets_N=targets_N,
        **(examples | fields),
    )


def built(name: str, inputs: InputFormat, seed: int = 0) -> nn.Module:
    return build_model(name, num_classes=NUM_CLASSES, inputs=spec_of(inputs), seed=seed)


def candidates(make: Callable[[int], nn.Module], number: int = 4) -> list[Weights]:
    return [
        {name: tensor.clone() for name, tensor in make(seed).state_dict().items()}
        for seed in range(1, number + 1)
    ]


def opening(given: Sequence[Weights]) -> list[OpenWeights]:
    return [lambda weights=weights: weights for weights in given]


def require_the_same(
    together: StackedEvaluator, given: Sequence[Weights], alone: Evaluator
) -> None:
    """Each is what it is alone."""
    found = list(together(opening(given), -math.inf))
    for one, weights in zip(found, given, strict=True):
        other = alone(weights)
        assert one.accuracy == pytest.approx(other.accuracy, abs=1e-6)
        torch.testing.assert_close(one.mended, other.mended, rtol=1e-4, atol=1e-5)
    assert together._works


CASES = [("resnet8", IMAGE), ("linear", NUMBERS), ("mlp", NUMBERS), ("text:tiny", TOKENS)]


@pytest.mark.parametrize("kind", list(TARGETS))
@pytest.mark.parametrize(("name", "inputs"), CASES, ids=[name for name, _ in CASES])
def test_scores_and_statistics_are_those_of_one_at_a_time(
    name: str, inputs: InputFormat, kind: str
) -> None:
    given = candidates(lambda seed: built(name, inputs, seed))
    together = StackedEvaluator(evaluator_of(built(name, inputs), inputs, kind))
    alone = evaluator_of(built(name, inputs), inputs, kind)
    require_the_same(together, given, alone)


def test_statistics_are_estimated_for_each_from_the_same_batches() -> None:
    given = candidates(lambda seed: built("resnet8", IMAGE, seed), 2)
    evaluator = evaluator_of(built("resnet8", IMAGE))
    found = list(StackedEvaluator(evaluator)(opening(given), -math.inf))
    names = {name for name in given[0] if "running" in name or "num_batches" in name}
    assert found[0].mended.keys() == names
    # 50 images in four parts; what a mixture came with is forgotten.
    counts = {int(found[0].mended[name]) for name in names if "num_batches" in name}
    assert counts == {4}
    assert all(tensor.device.type == "cpu" for tensor in found[0].mended.values())


def test_statistics_that_weights_came_with_are_used_where_none_are_estimated() -> None:
    given = candidates(lambda seed: made_up_network(seed=seed))
    for place, weights in enumerate(given):
        weights["1.running_mean"] += place
    evaluators = [evaluator_of(made_up_network(), batch_norm_examples_M=None) for _ in range(2)]
    require_the_same(StackedEvaluator(evaluators[0]), given, evaluators[1])


def test_frozen_layers_are_the_same_in_all_and_keep_their_statistics() -> None:
    start = made_up_network()
    frozen = frozen_names(start, ["1.*"])
    given = [
        weights | {name: start.state_dict()[name].clone() for name in frozen}
        for weights in candidates(lambda seed: made_up_network(seed=seed))
    ]
    evaluators = [evaluator_of(made_up_network(seed=9), frozen=frozen) for _ in range(2)]
    together = StackedEvaluator(evaluators[0])
    require_the_same(together, given, evaluators[1])
    assert not together._places.keys() & frozen


class Tied(nn.Module):
    """A batch norm and a layer in two places each, and weights in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(108), nn.Linear(108, 108)
        self.body = nn.Sequential(self.norm, self.layer, self.norm, self.layer)
        self.other = nn.Linear(108, 108)
        self.other.weight = self.layer.weight
        self.fc = nn.Linear(108, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.other(self.body(x.flatten(1))))
        return logits


def seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def made(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return make()

    return made


def test_layers_in_two_places_are_stacked_once_and_mended_by_both_names() -> None:
    given = candidates(seeded(Tied))
    evaluators = [evaluator_of(Tied()) for _ in range(2)]
    require_the_same(StackedEvaluator(evaluators[0]), given, evaluators[1])
    first, *_ = StackedEvaluator(evaluators[0])(opening(given), -math.inf)
    assert torch.equal(first.mended["norm.running_var"], first.mended["body.2.running_var"])


def soups(evaluate: Callable[[Evaluator], Evaluate], search: SoupSearch) -> tuple[Any, list[int]]:
    evaluator = evaluator_of(made_up_network())
    calls: list[int] = []
    progress: list[int] = []
    evaluator.model.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    learners = [lambda seed=seed: made_up_network(seed=seed).state_dict() for seed in range(5)]
    soup = greedy_soup(
        learners,
        evaluate(evaluator),
        num_alphas=6,
        on_progress=lambda done, _total: progress.append(done),
        search=search,
    )
    assert progress == sorted(set(progress))
    return soup, calls


@pytest.mark.parametrize("search", list(SoupSearch))
def test_the_soup_is_that_of_one_at_a_time_for_fewer_passes(search: SoupSearch) -> None:
    found, together = soups(StackedEvaluator, search)
    expected, alone = soups(lambda evaluator: Evaluators((evaluator,)), search)
    assert found.ingredients == expected.ingredients
    assert sum(part.kept for part in found.ingredients.values()) > 1
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-4, atol=1e-5)
    assert len(together) < len(alone)


@pytest.mark.parametrize(("room", "passes"), [(4, 1), (3, 2), (2, 2)])
def test_groups_are_as_large_as_there_is_room_for(room: int, passes: int) -> None:
    given = candidates(lambda seed: made_up_network(seed=seed))
    evaluator = evaluator_of(made_up_network(), batch_norm_examples_M=None)
    whole = StackedEvaluator(evaluator)
    each = whole.most_bytes // whole._group_size
    together = StackedEvaluator(evaluator, most_bytes=room * each + each // 2)
    list(together(opening(given), -math.inf))
    sizes: list[int] = []
    handle = evaluator.model.register_forward_pre_hook(lambda _, one: sizes.append(len(one[0])))
    require_the_same(together, given, evaluator_of(made_up_network(), batch_norm_examples_M=None))
    handle.remove()
    # Four batches for a group; a last one alone has as many.
    assert len(sizes) == 4 * passes


def test_one_goes_alone_where_there_is_room_for_no_more() -> None:
    given = candidates(lambda seed: made_up_network(seed=seed))
    evaluator = evaluator_of(made_up_network())
    together = StackedEvaluator(evaluator, most_bytes=1)
    alone = evaluator_of(made_up_network())
    found = [one.accuracy for one in together(opening(given), -math.inf)]
    assert found == [alone(weights).accuracy for weights in given]
    assert together._works is None


def test_a_group_none_of_which_can_be_above_the_floor_is_given_up() -> None:
    evaluator = evaluator_of(made_up_network(), batch_norm_examples_M=None)
    together = StackedEvaluator(evaluator)
    given = candidates(lambda seed: made_up_network(seed=seed))
    list(together(opening(given), -math.inf))
    calls: list[int] = []
    evaluator.model.register_forward_pre_hook(lambda _, one: calls.append(len(one[0])))
    assert [one.accuracy for one in together(opening(given), 1.0)] == [-math.inf] * 4
    # Not above 1 is known before the last batch, and in the first one each has a wrong answer.
    assert calls == [BATCH_SIZE]


class Deciding(nn.Module):
    """Looks at a value to decide what to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(108, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.flatten(1))
        return logits if logits.sum() > 0 else logits * 2


class Counting(Deciding):
    """Writes what differs into what is the same in all."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(NUM_CLASSES), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.flatten(1))
        self.seen += logits.sum(dim=0)
        return logits


class Holding(Deciding):
    """Takes its weights from where `functional_call` puts none."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [self.fc.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.held[0].T + self.fc.bias


@pytest.mark.parametrize("make", [Deciding, Counting, Holding])
def test_a_model_that_cannot_be_stacked_is_evaluated_one_at_a_time_and_tried_once(
    make: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    given = candidates(seeded(make))
    evaluator, alone = evaluator_of(seeded(make)(0)), evaluator_of(seeded(make)(0))
    together = StackedEvaluator(evaluator)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            found = list(together(opening(given), -math.inf))
            assert found == [alone(weights) for weights in given]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"mixtures are evaluated one at a time, as {make.__name__} cannot")


def test_what_fails_alone_as_well_is_told_as_it_is_alone() -> None:
    given = candidates(seeded(Tied))
    for weights in given:
        del weights["fc.bias"]
    with pytest.raises(KeyError, match=r"fc\.bias"):
        list(StackedEvaluator(evaluator_of(Tied()))(opening(given), -math.inf))


def test_stacking_is_for_other_devices_than_a_cpu_and_for_more_than_the_head() -> None:
    def evaluate(**fields: Any) -> Evaluate:
        evaluator = evaluator_of(made_up_network(), **fields)
        return evaluate_for_soup(evaluator, RunConfig(evaluation_threads=3), made_up_network)

    here = evaluate()
    assert isinstance(here, Evaluators)
    assert len({evaluator.model for evaluator in here.evaluators}) == 3
    assert isinstance(evaluate(device="cuda:0"), StackedEvaluator)
    frozen = frozen_names(made_up_network(), ["all-but-head"])
    head_alone = evaluate(device="cuda:0", frozen=frozen)
    assert isinstance(head_alone, Evaluators)
    assert len(head_alone.evaluators) == 1
