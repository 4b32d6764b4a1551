"""Wrong completions of a pool, found by learners of a few steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lipt
from lipt.common.errors import DataError, InvalidRequestError
from lipt.trainer.diagnosis.sentences import facts, proxy_text
from lipt.trainer.report.report import render_diagnosis

LETTERS = "abcdefghij"
QUICK = {"initialization": {"steps": 60, "batch_size": 32, "learning_rate": 2e-3}}
WRONG = 40


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Letters in upper case, of which every fifth is another one, and the first row twice."""
    rows = [(one, one.upper()) for one in np.random.default_rng(0).choice(list(LETTERS), 200)]
    for row in range(1, 200, 5):
        given, right = rows[row]
        rows[row] = given, LETTERS[(LETTERS.index(given) + 1) % 10].upper()
        assert rows[row][1] != right
    lines = [
        json.dumps({"q": f"{given} {row % 7} <b> =", "a": answer})
        for row, (given, answer) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    path.write_text("\n".join([*lines, lines[0]]))
    return f"jsonl:{path}?prompt=q&completion=a&max_length=12"


@pytest.fixture(scope="module")
def diagnosis(pool: str) -> lipt.Diagnosis:
    return diagnosed(pool)


def diagnosed(data: Any, **keywords: Any) -> lipt.Diagnosis:
    chosen: dict[str, Any] = {"run": QUICK, "device": "cpu", "progress": False} | keywords
    return lipt.pretrain(data, "text:causal", **chosen).diagnose()


@pytest.mark.slow
def test_wrong_completions_fit_worst(diagnosis: lipt.Diagnosis) -> None:
    worst = diagnosis.findings.worst_fitting[:WRONG]
    assert sum(row % 5 == 1 for row in worst) > 0.8 * WRONG
    assert list(worst) == diagnosis.label_quality.argsort(kind="stable")[:WRONG].tolist()
    assert not diagnosis.suspect.any()


@pytest.mark.slow
def test_duplicates_are_found_and_one_seed_gives_one_diagnosis(
    pool: str, diagnosis: lipt.Diagnosis
) -> None:
    assert diagnosis.duplicate_of[200] == diagnosis.duplicate_of[0]
    again = diagnosed(pool)
    assert again.label_quality.tolist() == diagnosis.label_quality.tolist()


@pytest.mark.slow
def test_sentences_and_page_name_the_rows(pool: str, diagnosis: lipt.Diagnosis) -> None:
    first, second = facts(diagnosis.findings)
    worst = diagnosis.findings.worst_fitting
    assert first.name == "completions"
    assert first.text.startswith(f"those of rows {worst[0]}, {worst[1]}, ")
    assert "How many are wrong is not estimated" in first.text
    assert second.name == "duplicates"
    assert proxy_text(diagnosis.findings) == "learners of text:causal"
    page = render_diagnosis(diagnosis, lipt.open_dataset(pool))
    line = json.loads(Path(pool[6:].partition("?")[0]).read_text().splitlines()[worst[0]])
    assert f"<td>{worst[0]}</td>" in page
    assert line["q"].replace("<b>", "&lt;b&gt;") in page
    assert "<b>" not in page
    assert "Outliers" not in page
    assert f"<td>{worst[0]}</td>" in render_diagnosis(diagnosis)


def test_other_texts_and_models_of_other_data_are_refused(pool: str) -> None:
    texts = pool.partition("?")[0] + "?text=a"
    with pytest.raises(DataError, match="Name both: prompt=COLUMN&completion=COLUMN"):
        lipt.diagnose(texts, device="cpu", progress=False)
    few = [{"q": "a", "a": "b"}] * 3
    with pytest.raises(DataError, match=r"3 examples are too few.*Give at least 4"):
        lipt.diagnose(few, target="prompt=q&completion=a", device="cpu", progress=False)
    numbers = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InvalidRequestError, match="the model linear was given, and only"):
        lipt.diagnose(numbers, model="linear", device="cpu", progress=False)
