"""`lipt.select` with target data: a pool in which the target's words have wrong answers as well."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import lipt
from lipt.common.errors import BudgetError, DataError, InvalidRequestError

OPTIONS = "?prompt=word&completion=answer&max_length=12"
QUICK = {
    "initialization": {"steps": 80, "batch_size": 32},
    "learners": {"num_minibatches": 12, "batch_size": 32},
}


def words(number: int, seed: int) -> list[str]:
    draws = random.Random(seed)
    return ["".join(draws.choices("abcdefgh", k=4)) for _ in range(number)]


def written(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    lines = [json.dumps({"word": f"{word}=", "answer": answer}) for word, answer in pairs]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/{name}.jsonl{OPTIONS}"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    right = [(word, word.upper()) for word in words(100, 1)]
    wrong = [
        (word, other.upper()) for word, other in zip(words(100, 2), words(100, 3), strict=True)
    ]
    digits = [(word, str(len(set(word)))) for word in words(200, 4)]
    return written(tmp_path_factory.mktemp("pool"), "pool", [*right, *wrong, *digits])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    pairs = [(word, word.upper()) for word in words(50, 9)]
    return written(tmp_path_factory.mktemp("target"), "target", pairs)


def chosen(data: object, target_data: object, **keywords: object) -> lipt.Subset:
    settings = {"run": QUICK, "device": "cpu", "progress": False} | keywords
    return lipt.select(data, target_data=target_data, **settings)  # type: ignore[arg-type]


def test_right_answers_to_the_targets_task_are_chosen(pool: str, target: str) -> None:
    subset = chosen(pool, target, budget=60)
    assert len(subset) == 60
    assert subset.strategy == "loss_drop"
    assert subset.fingerprint == lipt.open_dataset(pool).fingerprint
    # A quarter of the pool.
    assert (subset.indices < 100).mean() > 0.8
    assert subset.manifest["target"]["num_examples"] == 50
    assert np.array_equal(chosen(pool, target, budget=60).indices, subset.indices)


def test_examples_of_the_target_itself_are_left_out(pool: str) -> None:
    with pytest.raises(DataError, match="all 400 examples equal one of the target's"):
        chosen(pool, pool, budget=1)


def test_classes_are_chosen_alike() -> None:
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(300, 5, generator=draws)
    labels = (values[:, 0] > 0).long()
    wrong = torch.arange(300) >= 150
    labels[wrong] = 1 - labels[wrong]
    target = torch.randn(60, 5, generator=draws)
    subset = chosen(
        (values, labels), (target, (target[:, 0] > 0).long()), model="linear", budget=50
    )
    assert (subset.indices < 150).mean() > 0.8


def test_what_does_not_fit_a_target_is_refused(pool: str, target: str) -> None:
    with pytest.raises(InvalidRequestError, match="'craig' does not look at target_data"):
        chosen(pool, target, strategy="craig")
    with pytest.raises(
        InvalidRequestError, match="balanced, proxy cannot be used with target_data"
    ):
        chosen(pool, target, balanced=True, proxy="ridge:patches")
    with pytest.raises(BudgetError):
        chosen(pool, target, budget=401)
