from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from lipt.common.data.dataset import Numbering
from lipt.core.diagnosis.diagnosis import (
    Confusion,
    Diagnosis,
    Findings,
    Imbalance,
    confusions,
    diagnosis_of,
    imbalance,
)
from lipt.core.diagnosis.duplicates import Duplicates
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.diagnosis.learnability import judge
from lipt.core.diagnosis.outliers import Outliers
from tests.core.diagnosis.chances import signals_of

LABELS_N = torch.tensor([0, 0, 0, 1, 1, 1])


@pytest.fixture
def findings() -> Findings:
    chances_NC = torch.tensor(
        [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]]
    )
    scores_N = torch.tensor([1.0, 1.0, 9.0, 1.0, 1.0, 5.0])
    return Findings(
        find_label_errors(signals_of(chances_NC, LABELS_N)),
        Duplicates(torch.tensor([0, 0, 0, 3, 5, 5]), 1, 2, 0, 0.96),
        Outliers(scores_N, fence=4.0),
        judge((3, 6), (0.5, 0.6)),
    )


@pytest.fixture
def diagnosis(findings: Findings) -> Diagnosis:
    return put_together(findings, LABELS_N)


def put_together(findings: Findings, labels_N: Tensor) -> Diagnosis:
    return diagnosis_of(
        findings,
        labels_N=labels_N,
        class_names=["cat", "dog"],
        proxy={"proxy": "ridge:patches", "accuracy": 0.6},
        redundancy={"share_for_90": 0.5},
        seconds={"signals": 1.5},
    )


def test_summary_has_every_finding(diagnosis: Diagnosis) -> None:
    summary = diagnosis.summary
    assert summary["version"] == 1
    assert (summary["num_examples"], summary["class_counts"]) == (6, [3, 3])
    errors = summary["label_errors"]
    assert errors["num_suspects"] == 1
    assert errors["ranked"][0].keys() == {"id", "given", "suggested", "quality"}
    assert [errors["ranked"][0][key] for key in ("id", "given", "suggested")] == [2, 0, 1]
    assert [one["suspects"] for one in errors["per_class"]] == [1, 0]
    assert summary["confusion"] == [{"given": 0, "suggested": 1, "count": 1, "share": 1 / 3}]
    assert summary["duplicates"]["groups"] == [[0, 1, 2], [5, 4]]
    assert summary["duplicates"]["surplus"] == 3
    assert summary["imbalance"]["ratio"] == 1.0
    assert summary["outliers"] == {"count": 2, "ranked": [2, 5]}
    assert summary["learnability"]["sizes"] == [3, 6]
    assert summary["seconds"] == {"signals": 1.5}


def test_a_file_has_columns_and_the_summary(diagnosis: Diagnosis, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(diagnosis.pack())
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["diagnosis"]) == diagnosis.summary
        kinds = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        assert file.get_tensor("suspect").tolist() == [0, 0, 1, 0, 0, 0]
        assert file.get_tensor("suggested_label").tolist() == [0, 0, 1, 1, 1, 1]
        assert file.get_tensor("duplicate_of").tolist() == [0, 0, 0, 3, 5, 5]
    assert kinds == {
        "given_label": torch.int32,
        "suggested_label": torch.int32,
        "duplicate_of": torch.int32,
        "label_quality": torch.float32,
        "outlier_score": torch.float32,
        "suspect": torch.uint8,
    }
    read = Diagnosis.load(path)
    assert read.summary == diagnosis.summary
    assert torch.equal(read.columns["outlier_score"], diagnosis.columns["outlier_score"])


def test_findings_are_told_by_id_and_say_nothing_of_what_was_left_out(findings: Findings) -> None:
    # Places 0 to 5 are the ids 0, 2, 3, 4, 6, 7.
    labels_N = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1])
    found = put_together(findings.by_id(Numbering((1, 5)), labels_N), labels_N)
    assert (found.summary["num_examples"], found.summary["class_counts"]) == (8, [4, 4])
    assert [one["id"] for one in found.summary["label_errors"]["ranked"]] == [3]
    assert found.summary["duplicates"]["groups"] == [[0, 2, 3], [7, 6]]
    assert found.summary["outliers"] == {"count": 2, "ranked": [3, 7]}
    columns = found.columns
    assert columns["given_label"].tolist() == labels_N.tolist()
    assert columns["suggested_label"].tolist() == [0, 1, 0, 1, 1, 0, 1, 1]
    assert columns["suspect"].nonzero().flatten().tolist() == [3]
    assert columns["duplicate_of"].tolist() == [0, 1, 0, 0, 4, 5, 7, 7]
    assert columns["label_quality"][[1, 5]].tolist() == [findings.label_errors.quality_N.max()] * 2


def test_where_nothing_was_left_out_findings_are_those_of_the_places(findings: Findings) -> None:
    assert findings.by_id(Numbering(), LABELS_N) is findings


JOINT_CC = torch.tensor([[50, 4, 0], [10, 30, 4], [0, 0, 9]])
COUNTS_C = torch.tensor([60, 50, 10])


def test_pairs_come_by_how_often_and_ties_by_label() -> None:
    assert confusions(JOINT_CC, COUNTS_C) == [
        Confusion(given=1, suggested=0, count=10, share=0.2),
        Confusion(given=0, suggested=1, count=4, share=4 / 60),
        Confusion(given=1, suggested=2, count=4, share=0.08),
    ]


def test_no_more_are_listed_than_asked_for() -> None:
    assert [pair.count for pair in confusions(JOINT_CC, COUNTS_C, most=1)] == [10]


def test_one_class_is_confused_with_none() -> None:
    assert confusions(torch.tensor([[7]]), torch.tensor([7])) == []


def test_equal_classes_count_as_many() -> None:
    found = imbalance([5, 5, 5, 5])
    assert found.effective_classes == pytest.approx(4.0)
    assert found == Imbalance(1.0, 0, 0, found.effective_classes)


def test_ratio_is_of_the_largest_to_the_smallest_that_has_any() -> None:
    # Entropy of (1/2, 1/4, 1/4) is 1.5 bits: 2^1.5 classes.
    found = imbalance([20, 10, 0, 10])
    assert (found.ratio, found.smallest, found.largest) == (2.0, 1, 0)
    assert found.effective_classes == pytest.approx(2**1.5)


def test_one_class_is_one() -> None:
    assert imbalance([0, 7]) == Imbalance(1.0, 1, 1, 1.0)


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        imbalance([0, 0])
