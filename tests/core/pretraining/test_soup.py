from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.common.errors import RunFailedError
from lipt.common.tensor_files import Weights
from lipt.core.pretraining.evaluation import OpenWeights, Scored
from lipt.core.pretraining.results import Ingredient
from lipt.core.pretraining.soup import Interpolated, Soup, greedy_soup, weighted_soup
from tests.one_by_one import one_by_one
from tests.properties import at_most

Score = Callable[[Mapping[str, torch.Tensor]], Scored]


def vector(*values: float) -> Weights:
    return {"w": torch.tensor(values)}


def loaders(learners: Sequence[Weights]) -> list[OpenWeights]:
    def loader(weights: Weights) -> OpenWeights:
        return lambda: {name: tensor.clone() for name, tensor in weights.items()}

    return [loader(weights) for weights in learners]


def closeness(target: float) -> Score:
    """Accuracy 1 - |w - target|, rounded so that ties happen."""
    return lambda weights: Scored(round(1 - abs(weights["w"][0].item() - target), 4), {})


def ignore(_done: int, _total: int) -> None:
    """No progress bar."""


def greedy(learners: Sequence[Weights], score: Score, num_alphas: int | None = 10) -> Soup:
    evaluate = one_by_one(score)
    return greedy_soup(loaders(learners), evaluate, num_alphas=num_alphas, on_progress=ignore)


def test_of_equally_accurate_learners_the_first_starts_with_its_own_statistics() -> None:
    learners = [vector(1.0), vector(0.4)]
    soup = greedy(learners, lambda of: Scored(0.5, {"mean": of["w"].clone()}), num_alphas=2)
    assert soup.weights["w"].tolist() == soup.weights["mean"].tolist() == [1.0]
    assert [part.kept for part in soup.ingredients.values()] == [True, False]


def test_soup_of_two_learners_by_hand() -> None:
    # Target 0.5: learner 1 (0.4, accuracy 0.9) starts; learner 0 (1.0, 0.5) at alpha = 1/4 gives
    # 0.55 (0.95), at 1/2 gives 0.7 (0.8): it enters with 1/4.
    soup = greedy([vector(1.0), vector(0.4)], closeness(0.5), num_alphas=4)
    assert soup.weights["w"].tolist() == pytest.approx([0.55])
    assert soup.accuracy == pytest.approx(0.95)
    assert list(soup.ingredients.items()) == [
        (1, Ingredient(position=0, accuracy=0.9, alpha=1.0, kept=True, soup_accuracy=0.9)),
        (0, Ingredient(position=1, accuracy=0.5, alpha=0.25, kept=True, soup_accuracy=0.95)),
    ]


def test_a_soup_without_ratios_is_the_mean_of_learners_that_do_no_harm() -> None:
    # 0.4 starts (accuracy 0.9). With 0.8 the mean is 0.6 (0.9), which is no loss; with 0.2 it is
    # 0.4667 (0.9667); 1.0 would make it 0.6 again, so it is discarded.
    soup = greedy([vector(v) for v in (1.0, 0.4, 0.8, 0.2)], closeness(0.5), num_alphas=None)
    kept = [(index, item.alpha) for index, item in soup.ingredients.items() if item.kept]
    assert kept == [(1, 1.0), (2, 1 / 2), (3, 1 / 3)]
    assert soup.weights["w"].tolist() == pytest.approx([1.4 / 3])
    accuracies = [item.soup_accuracy for item in soup.ingredients.values()]
    assert accuracies == pytest.approx([0.9, 0.9, 0.9667, 0.9667])


def test_a_learner_is_tried_at_every_ratio_below_one() -> None:
    seen = list[float]()

    def score(weights: Mapping[str, torch.Tensor]) -> Scored:
        seen.append(weights["w"].item())
        return Scored(0.5, {})

    greedy([vector(0.0), vector(1.0)], score, num_alphas=4)
    assert seen == [0.0, 1.0, 0.25, 0.5, 0.75]


def test_the_soup_has_the_winner_s_statistics() -> None:
    # The estimate says which weights it was made for.
    def evaluate(weights: Mapping[str, torch.Tensor]) -> Scored:
        value = weights["w"].item()
        return Scored(1 - abs(value - 0.5), {"mean": torch.tensor(10 * value)})

    learners = [{"w": torch.tensor(v), "mean": torch.tensor(99.0)} for v in (0.0, 0.9)]
    soup = greedy(learners, evaluate)
    # 0.9 starts; at alpha = 0.4 it is 0.54, at 0.5 0.45.
    assert soup.weights["w"].item() == pytest.approx(0.54)
    assert soup.weights["mean"].item() == pytest.approx(5.4)
    assert greedy(learners[1:], evaluate).weights["mean"].item() == pytest.approx(9.0)


def test_a_soup_without_learners_is_an_error() -> None:
    with pytest.raises(RunFailedError, match=r"0 learners arrived.*deadline_seconds"):
        greedy([], closeness(0.5))
    with pytest.raises(RunFailedError, match="0 learners arrived"):
        weighted_soup([], None, one_by_one(closeness(0.5)), on_progress=ignore)


def brute_force(
    learners: Sequence[list[float]], score: Callable[[list[float]], float], n: int
) -> tuple[list[float], float, list[tuple[int, float]]]:
    """The definition in plain Python, alpha = 1 evaluated like all others."""
    order = sorted(range(len(learners)), key=lambda i: (-score(learners[i]), i))
    soup, kept = learners[order[0]], [(order[0], 1.0)]
    for index in order[1:]:
        mixtures = [
            (
                alpha,
                [(1 - alpha) * a + alpha * b for a, b in zip(soup, learners[index], strict=True)],
            )
            for alpha in (step / n for step in range(1, n + 1))
        ]
        alpha, mixture = max(mixtures, key=lambda pair: (score(pair[1]), -pair[0]))
        if score(mixture) > score(soup):
            soup = mixture
            kept.append((index, alpha))
    return soup, score(soup), kept


@settings(max_examples=at_most(60))
@given(
    learners=st.lists(
        st.lists(st.integers(-8, 8).map(float), min_size=3, max_size=3), min_size=1, max_size=5
    ),
    target=st.lists(st.integers(-8, 8).map(float), min_size=3, max_size=3),
    num_alphas=st.integers(1, 6),
)
def test_the_soup_equals_a_brute_force_search(
    learners: list[list[float]], target: list[float], num_alphas: int
) -> None:
    # Float64 weights, and accuracies coarse enough that rounding does not decide.
    def score(values: Sequence[float]) -> float:
        distance = sum((a - b) ** 2 for a, b in zip(values, target, strict=True))
        return round(1 / (1 + distance), 2)

    def evaluate(weights: Mapping[str, torch.Tensor]) -> Scored:
        return Scored(score(weights["w"].tolist()), {})

    weights, accuracy, kept = brute_force(learners, score, num_alphas)
    soup = greedy(
        [{"w": torch.tensor(values, dtype=torch.float64)} for values in learners],
        evaluate,
        num_alphas=num_alphas,
    )
    assert soup.accuracy == accuracy
    assert [(index, item.alpha) for index, item in soup.ingredients.items() if item.kept] == kept
    assert soup.weights["w"].tolist() == pytest.approx(weights)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_ends_of_an_interpolation_are_exact(alpha: float) -> None:
    soup, ingredient = vector(0.1, -0.0, 3e38), vector(1e-30, 5.0, -3e38)
    mixed = Interpolated(soup, ingredient, alpha)
    expected = ingredient if alpha else soup
    assert mixed["w"].view(torch.int32).tolist() == expected["w"].view(torch.int32).tolist()
    assert mixed["w"].data_ptr() != expected["w"].data_ptr()


def test_blockwise_mixing_equals_mixing_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(300, 700, generator=generator).t()
    end = torch.randn(700, 300, generator=generator)
    expected = (start.double() + 0.3 * (end.double() - start.double())).float()
    assert torch.equal(Interpolated({"w": start}, {"w": end}, 0.3)["w"], expected)


def test_integer_tensors_and_dtypes_are_the_soup_s() -> None:
    soup = {
        "counter": torch.tensor(3),
        "half": torch.tensor([1.0], dtype=torch.bfloat16),
        "double": torch.tensor([1.0], dtype=torch.float64),
        "mask": torch.tensor([True]),
    }
    ingredient = {
        "counter": torch.tensor(8),
        "half": torch.tensor([2.0], dtype=torch.bfloat16),
        "double": torch.tensor([3.0], dtype=torch.float64),
        "mask": torch.tensor([False]),
    }
    before = {name: tensor.clone() for name, tensor in ingredient.items()}
    mixed = Interpolated(soup, ingredient, 0.5)
    assert {name: tensor.tolist() for name, tensor in mixed.items()} == {
        "counter": 3,
        "half": [1.5],
        "double": [2.0],
        "mask": [True],
    }
    assert all(mixed[name].dtype == tensor.dtype for name, tensor in soup.items())
    assert all(torch.equal(ingredient[name], tensor) for name, tensor in before.items())
    assert soup["double"].item() == 1.0


def test_weighted_soup_has_the_mean_of_every_tensor_and_the_estimated_statistics() -> None:
    # 2**24 + 1 is no float32: only a sum in float64 has all three.
    learners = [
        {
            "a": torch.tensor([a]),
            "b": torch.tensor([b, 0.0]),
            "c": torch.tensor([b] * 3),
            "d": torch.tensor([b] * 4),
            "mean": torch.tensor(99.0),
            "counter": torch.tensor(int(b)),
        }
        for a, b in ((2.0**24, 10.0), (1.0, 20.0), (1.0, 60.0))
    ]
    told: list[tuple[int, int]] = []
    soup = weighted_soup(
        loaders(learners),
        None,
        one_by_one(lambda of: Scored(of["b"][0].item() / 100, {"mean": torch.tensor(7.0)})),
        on_progress=lambda *done: told.append(done),
    )
    found = {name: tensor.tolist() for name, tensor in soup.weights.items()}
    means = {"a": [(2**24 + 2) / 3], "b": [30.0, 0.0], "c": [30.0] * 3, "d": [30.0] * 4}
    assert found == means | {"mean": 7.0, "counter": 10}
    parts = soup.ingredients.values()
    assert [part.accuracy for part in parts] == pytest.approx([0.1, 0.2, 0.6])
    assert soup.accuracy == pytest.approx(0.3)
    assert all(part.kept and part.soup_accuracy == soup.accuracy for part in parts)
    # Each learner's share of the mean when it enters.
    assert [part.alpha for part in parts] == pytest.approx([1, 1 / 2, 1 / 3])
    assert told[-1] == (4, 4)
