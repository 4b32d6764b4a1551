from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import WeightsError
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.files import pack, read_container
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.evaluation import Scored
from lipt.core.results import frozen_in, open_learner, pack_initial
from lipt.core.soup import greedy_soup, uniform_soup
from tests.one_by_one import one_by_one

THETA: Weights = {
    "body.weight": torch.randn(40, 40, generator=torch.Generator().manual_seed(0)),
    "fc.weight": torch.zeros(2, 2),
    "count": torch.tensor(3),
}
FROZEN = frozenset({"body.weight", "count"})


def head(value: float) -> Weights:
    return {"fc.weight": torch.full((2, 2), value)}


def opened(path: Path) -> Mapping[str, torch.Tensor]:
    return open_learner(path, specs_of(THETA), {name: THETA[name] for name in FROZEN})


def test_theta_s_file_says_what_is_frozen_and_is_the_plain_one_where_nothing_is() -> None:
    content = pack_initial(THETA, FROZEN)
    container = read_container(content, max_bytes=10**5, max_tensors=10)
    assert container.metadata == {"lipt.frozen": '["body.weight", "count"]'}
    assert frozen_in(container.metadata) == FROZEN
    assert pack_initial(THETA, ()) == pack(THETA)
    assert frozen_in({}) == frozenset()


@pytest.mark.parametrize("encoding", list(WeightEncoding))
def test_a_learner_is_opened_as_a_whole_state_without_a_copy_of_what_is_frozen(
    tmp_path: Path, encoding: WeightEncoding
) -> None:
    path = tmp_path / "learner"
    path.write_bytes(encode_weights(head(2.0), encoding))
    whole = opened(path)
    assert list(whole) == list(THETA)
    assert len(whole) == 3
    assert specs_of(whole) == specs_of(THETA)
    assert whole["body.weight"] is THETA["body.weight"]
    assert whole["fc.weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_learner_with_more_or_less_than_what_is_trained_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    for weights in (THETA, {"count": THETA["count"]}):
        path.write_bytes(encode_weights(weights, WeightEncoding.BITMASK))
        with pytest.raises(WeightsError, match="differ from the model's"):
            opened(path)


def test_without_frozen_layers_a_learner_is_all_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    path.write_bytes(encode_weights(THETA, WeightEncoding.BITMASK))
    whole = open_learner(path, specs_of(THETA), {})
    assert all(torch.equal(whole[name], tensor) for name, tensor in THETA.items())


def nearer_to_two(weights: object) -> Scored:
    """The more accurate the nearer the head is to 2."""
    assert isinstance(weights, dict) or hasattr(weights, "items")
    value = float(weights["fc.weight"].mean())  # type: ignore[index]
    return Scored(accuracy=1 - abs(value - 2) / 10, mended={})


def test_soups_of_parts_are_those_of_the_whole_states_to_the_bit(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for path, value in zip(paths, (1.0, 4.0, 0.5), strict=True):
        path.write_bytes(encode_weights(head(value), WeightEncoding.BITMASK))
    parts = [lambda path=path: opened(path) for path in paths]
    wholes = [lambda open_=open_: {n: t.clone() for n, t in open_().items()} for open_ in parts]
    ignore: dict[str, Any] = {"on_progress": lambda *_: None}
    for learners in (parts, wholes):
        greedy = greedy_soup(learners, one_by_one(nearer_to_two), num_alphas=3, **ignore)
        # 1 is best; a third of the way to 4 is 2, and nothing helps any more.
        assert greedy.weights["fc.weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
        uniform = uniform_soup(learners, one_by_one(nearer_to_two), **ignore)
        for soup in (greedy, uniform):
            assert all(torch.equal(soup.weights[name], THETA[name]) for name in FROZEN)
        assert uniform.weights["fc.weight"].mean().item() == pytest.approx(5.5 / 3)
