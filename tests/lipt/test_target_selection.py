"""`lipt.select` with target data: a pool in which the target's words have wrong answers as well."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import lipt
from lipt.common.config.run_config import merge
from lipt.common.errors import (
    BudgetError,
    DataError,
    InvalidRequestError,
    SignalsError,
    StrategyOptionError,
)

OPTIONS = "?prompt=word&completion=answer&max_length=12"
QUICK = {"initialization": {"steps": 80, "batch_size": 32}, "learners": {"batch_size": 32}}


REST: Any = {"run": QUICK, "device": "cpu", "progress": False}


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


@pytest.fixture(scope="module")
def pretrained(pool: str) -> lipt.Pretrained:
    run = merge(lipt.PRESETS["target-text"], QUICK)
    return lipt.Pretrained(pool, run=run, device="cpu", progress=False)


def test_right_answers_to_the_targets_task_are_chosen(
    pool: str, target: str, pretrained: lipt.Pretrained
) -> None:
    subset = lipt.select(pool, target_data=target, budget=40, **REST)
    assert len(subset) == 40
    assert subset.strategy == "loss_drop"
    assert subset.fingerprint == lipt.open_dataset(pool).fingerprint
    # A quarter of the pool.
    assert (subset.indices < 100).mean() > 0.8
    assert subset.manifest["target"]["num_examples"] == [50]
    assert np.array_equal(pretrained.select(budget=40, target_data=target).indices, subset.indices)


def test_hidden_states_cannot_tell_right_answers(target: str, pretrained: lipt.Pretrained) -> None:
    subset = pretrained.select("rds_plus", budget=60, target_data=target)
    # Half of what looks like the target is wrong.
    assert 0.2 < (subset.indices < 100).mean() < 0.8
    assert (subset.indices < 200).mean() > 0.8


def test_words_need_no_model(pool: str, target: str) -> None:
    untrained = lipt.Pretrained(pool, **REST)
    by_words = untrained.select("bm25", budget=60, target_data=target)
    assert "any seed and model give this subset" in by_words.findings
    assert untrained.costs.initialization_seconds == 0


def test_a_targets_frame_or_plain_file_is_read_by_the_options_of_the_pools_name(
    pool: str, target: str, tmp_path: Path
) -> None:
    untrained = lipt.Pretrained(pool, **REST)
    expected = untrained.select("bm25", budget=60, target_data=target).indices
    lines = Path(target.removeprefix("jsonl:").partition("?")[0]).read_text()
    (tmp_path / "plain.jsonl").write_text(lines)
    frame = pd.DataFrame(map(json.loads, lines.splitlines()))
    for given in (frame, str(tmp_path / "plain.jsonl")):
        found = untrained.select("bm25", budget=60, target_data=given).indices
        assert np.array_equal(found, expected)


def test_losses_alone_need_no_target(pretrained: lipt.Pretrained) -> None:
    least = pretrained.select("perplexity", budget=60, options={"keep": "least"})
    # An answer of one digit is the easiest to guess.
    assert (least.indices >= 200).mean() > 0.9
    assert len(pretrained.select("ifd", budget=60)) == 60


def test_parts_of_a_target_take_turns(
    target: str, pretrained: lipt.Pretrained, tmp_path: Path
) -> None:
    pairs = [(word, str(len(set(word)))) for word in words(50, 11)]
    counts = written(tmp_path, "counts", pairs)
    subset = pretrained.select(budget=60, target_data={"upper": target, "count": counts})
    assert subset.manifest["target"]["num_examples"] == [50, 50]
    assert 0.4 < (subset.indices >= 200).mean() < 0.6


def test_examples_of_the_target_itself_are_left_out_and_named(
    pool: str, pretrained: lipt.Pretrained, tmp_path: Path
) -> None:
    lines = Path(pool.removeprefix("jsonl:").partition("?")[0]).read_text().splitlines()
    (tmp_path / "own.jsonl").write_text("\n".join(lines[:50]))
    asked: Any = {"budget": 350, "target_data": f"jsonl:{tmp_path}/own.jsonl{OPTIONS}"}
    subset = pretrained.select(**asked)
    # A word may be drawn twice.
    equal = sum(line in lines[:50] for line in lines)
    assert subset.indices.min() >= 50
    assert len(subset) == 400 - equal
    assert f"{equal} examples duplicate one of the target's" in subset.findings
    assert pretrained.select(**asked, options={"duplicates": "keep"}).indices.min() < 50
    with pytest.raises(SignalsError, match="400 of 400 examples duplicate one of the target's"):
        pretrained.select(budget=1, target_data=pool)


def test_classes_are_chosen_alike() -> None:
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(300, 5, generator=draws)
    labels = (values[:, 0] > 0).long()
    wrong = torch.arange(300) >= 150
    labels[wrong] = 1 - labels[wrong]
    target = torch.randn(60, 5, generator=draws)
    subset = lipt.select(
        (values, labels),
        "linear",
        target_data=(target, (target[:, 0] > 0).long()),
        budget=50,
        **REST,
    )
    assert (subset.indices < 150).mean() > 0.8


def test_a_frame_is_read_by_its_own_target_column() -> None:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame({"a": draws.normal(size=200), "b": ["u", "v"] * 100})
    frame["y"] = np.where(frame["a"] > 0, "p", "q")
    asked: Any = {"target": "y", "target_data": frame[["y", "b", "a"]][:20], "budget": 30}
    subset = lipt.select(frame, **asked, **REST)
    assert subset.indices.min() >= 20
    assert subset.manifest["target"]["equal_in_data"] == 20
    with pytest.raises(DataError, match="the target has no column 'a'"):
        lipt.select(frame, **{**asked, "target_data": frame[["y", "b"]]}, **REST)


def test_what_does_not_fit_a_target_is_refused(target: str, pretrained: lipt.Pretrained) -> None:
    with pytest.raises(InvalidRequestError, match="'craig' does not look at target_data"):
        pretrained.select("craig", target_data=target)
    with pytest.raises(InvalidRequestError, match="'rds_plus' needs examples of what you care"):
        pretrained.select("rds_plus")
    with pytest.raises(StrategyOptionError, match="'loss_drop' is never balanced"):
        pretrained.select(target_data=target, balanced=True)
    with pytest.raises(BudgetError):
        pretrained.select(target_data=target, budget=401)
    with pytest.raises(InvalidRequestError, match="'loss_drop' looks at theta"):
        pretrained.select(target_data=target, proxy="ridge:columns")
    with pytest.raises(DataError, match="the target has no part"):
        pretrained.select(target_data={})
    longer = target.partition("&max_length")[0]
    for other in (longer, lipt.open_dataset(longer)):
        with pytest.raises(
            DataError, match=r"the target \(jsonl:.* holds int64\[128\], but the tr"
        ):
            pretrained.select(target_data=other)
    with pytest.raises(DataError, match=r"has single-label targets, but .* has next-token targets"):
        pretrained.select(target_data=(np.eye(4), np.arange(4) % 2))
    with pytest.raises(SignalsError, match=r"duplicate .* the option duplicates=keep\.$"):
        pretrained.select(target_data=pretrained.data, budget=3)


def test_strategies_of_prompts_and_words_refuse_other_data(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n' * 3 + '{"text": "two"}\n' * 3)
    data = f"jsonl:{tmp_path}/texts.jsonl?text=text&max_length=8"
    tiny = {"initialization": {"steps": 1, "batch_size": 2}, "learners": {"batch_size": 2}}
    few: Any = {**REST, "run": tiny}
    with pytest.raises(InvalidRequestError, match=r"'ifd' compares .* and the data has no prompts"):
        lipt.select(data, strategy="ifd", budget=2, **few)
    table = (torch.rand(40, 3), torch.arange(40) % 2)
    with pytest.raises(InvalidRequestError, match="words are compared"):
        lipt.select(table, "linear", target_data=table, strategy="bm25", **REST)
