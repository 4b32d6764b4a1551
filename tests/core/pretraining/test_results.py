from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import WeightsError
from lipt.common.tensor_files import Weights, pack, read_container, specs_of
from lipt.core.pretraining.results import frozen_names_of, open_learner, pack_initial
from lipt.models.encodings import encode_weights

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


def test_theta_star_s_file_lists_frozen_tensors_if_any() -> None:
    content = pack_initial(THETA, FROZEN)
    container = read_container(content, max_bytes=10**5, max_tensors=10)
    assert container.metadata == {"lipt.frozen": '["body.weight", "count"]'}
    assert frozen_names_of(container.metadata) == FROZEN
    assert pack_initial(THETA, ()) == pack(THETA)
    assert frozen_names_of({}) == frozenset()


@pytest.mark.parametrize("encoding", list(WeightEncoding))
def test_an_opened_learner_shares_frozen_tensors(tmp_path: Path, encoding: WeightEncoding) -> None:
    path = tmp_path / "learner"
    path.write_bytes(encode_weights(head(2.0), encoding))
    whole = opened(path)
    assert list(whole) == list(THETA)
    assert len(whole) == 3
    assert specs_of(whole) == specs_of(THETA)
    assert whole["body.weight"] is THETA["body.weight"]
    assert whole["fc.weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_learner_must_have_exactly_the_trained_tensors(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    for weights in (THETA, {"count": THETA["count"]}):
        path.write_bytes(encode_weights(weights, WeightEncoding.BITMASK))
        with pytest.raises(WeightsError, match="differ from the model's"):
            opened(path)
    path.write_bytes(encode_weights(THETA, WeightEncoding.BITMASK))
    whole = open_learner(path, specs_of(THETA), {})
    assert all(torch.equal(whole[name], tensor) for name, tensor in THETA.items())
