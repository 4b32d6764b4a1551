from __future__ import annotations

import ast

import numpy as np
import pytest

from lipt.common.blobs.name import BlobName
from lipt.common.subsets import Examples
from lipt.coordinator.page.subset_views import NUM_SHOWN, code_for, examined
from lipt.coordinator.state.records import SubsetRecord

LABELS = np.array([0, 0, 0, 1, 1, 1] * 20)
NAMES = ("</script>", "b")


def record(**manifest: object) -> SubsetRecord:
    return SubsetRecord(
        key="k",
        run_id="r",
        strategy="craig",
        num_examples=3,
        balanced=True,
        fingerprint="f",
        digest="d" * 64,
        weights_sha256="w",
        manifest={"budget": 4, "run_config": {"seed": 5}, **manifest},
        blob=BlobName.of(b"subset"),
        created_at=7.0,
    )


def examples(*weights: float) -> Examples:
    return Examples(np.array([1, 3, 5]), np.array(weights, np.float32))


def test_heaviest_examples_are_wanted_most() -> None:
    found = examined(record(), examples(0.5, 4.0, 2.0), LABELS, NAMES, "head:1")
    assert found["most_wanted"] == [3, 5, 1]
    assert found["weights"] == {"min": 0.5, "max": 4.0, "weighted": True}
    assert found["wanted_by"] == {"most": "weight", "least": "draw"}
    assert found["classes"] == [
        {"name": "</script>", "in_data": 60, "in_subset": 1},
        {"name": "b", "in_data": 60, "in_subset": 2},
    ]


def test_where_weights_are_equal_the_same_ones_are_drawn_every_time() -> None:
    found = examined(record(), examples(1.0, 1.0, 1.0), LABELS, NAMES, "head:1")
    assert found["most_wanted"] == [1, 3, 5]
    assert found["wanted_by"]["most"] == "draw"
    assert len(found["least_wanted"]) == NUM_SHOWN
    assert not {1, 3, 5} & set(found["least_wanted"])
    again = examined(record(), examples(1.0, 1.0, 1.0), LABELS, NAMES, "head:1")
    assert found["least_wanted"] == again["least_wanted"]


def test_examples_in_quarantine_are_not_wanted_least() -> None:
    rest = [row for row in range(len(LABELS)) if row not in (1, 3, 5, 7, 8)]
    left_out = [row for row in range(len(LABELS)) if row not in (1, 3, 5, 7, 8, *rest[:2])]
    found = examined(record(), examples(1.0, 1.0, 1.0), LABELS, NAMES, "head:1", left_out)
    assert found["least_wanted"] == sorted([*rest[:2], 7, 8])


def test_of_other_data_than_is_served_no_classes_are_shown() -> None:
    given = record(data={"num_examples": 30})
    found = examined(given, examples(1.0, 1.0, 1.0), LABELS[:0], NAMES, "head:1")
    assert (found["classes"], found["least_wanted"], found["fraction"]) == ([], [], 0.1)


@pytest.mark.parametrize("text", ["a", "'); import os #", '"""', "\\", "\n"])
def test_code_asks_for_the_same_subset_whatever_its_texts_hold(text: str) -> None:
    given = record(options={text: text}, preset="paper", labels="none", proxy={"proxy": text})
    imported, asking, using = ast.parse(code_for(given, "head:1")).body
    assert isinstance(imported, ast.Import)
    assert isinstance(using, ast.Assign)
    assert isinstance(asking, ast.Assign)
    call = asking.value
    assert isinstance(call, ast.Call)
    assert [ast.literal_eval(argument) for argument in call.args] == ["r", "craig"]
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == {
        "budget": 4,
        "options": {text: text},
        "balanced": True,
        "preset": "paper",
        "labels": "none",
        "proxy": text,
    }
