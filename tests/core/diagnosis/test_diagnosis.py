import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from lipt.common.data.dataset import Numbering
from lipt.core.diagnosis.diagnosis import (
    Diagnosis,
    Findings,
    Outliers,
    confusions,
    diagnosis_of,
    find_outliers,
    imbalance,
    judge,
    learning_curve,
    sample_sizes,
    stratified_order,
)
from lipt.core.diagnosis.duplicates import Duplicates
from lipt.core.diagnosis.label_errors import find_label_errors
from tests.core.diagnosis.test_label_errors import signals_of

LABELS_N = torch.tensor([0, 0, 0, 1, 1, 1])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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


JOINT_CC = torch.tensor([[50, 4, 0], [10, 30, 4], [0, 0, 9]])
COUNTS_C = torch.tensor([60, 50, 10])


def test_pairs_come_by_how_often_and_ties_by_label() -> None:
    assert confusions(JOINT_CC, COUNTS_C) == [
        {"given": 1, "suggested": 0, "count": 10, "share": 0.2},
        {"given": 0, "suggested": 1, "count": 4, "share": 4 / 60},
        {"given": 1, "suggested": 2, "count": 4, "share": 0.08},
    ]


def test_ratio_is_of_the_largest_to_the_smallest_that_has_any() -> None:
    # Entropy of (1/2, 1/4, 1/4) is 1.5 bits: 2^1.5 classes.
    found = imbalance([20, 10, 0, 10])
    assert found == {
        "ratio": 2.0,
        "smallest": 1,
        "largest": 0,
        "effective_classes": pytest.approx(2**1.5),
    }


def test_sizes_are_halves_that_are_neither_tiny_nor_huge() -> None:
    assert sample_sizes(1000) == [125, 250, 500]
    assert sample_sizes(50_000) == [1562, 3125, 6250, 12_500]
    assert sample_sizes(150) == []


def test_every_sample_has_the_classes_in_their_shares() -> None:
    labels_N = torch.tensor([0] * 80 + [1] * 40 + [3] * 8)
    order_N = stratified_order(labels_N, torch.Generator().manual_seed(0))
    assert sorted(order_N.tolist()) == list(range(128))
    for size in (16, 32, 64):
        counts = labels_N[order_N[:size]].bincount(minlength=4).tolist()
        assert counts == [size * 10 // 16, size * 5 // 16, 0, size // 16]


def test_worth_asking_for_is_the_least_size_from_which_doublings_gain_little() -> None:
    found = judge((100, 200, 400, 800), (0.5, 0.6, 0.605, 0.61))
    assert found.suggested_fraction == 0.25
    assert "from 200 examples on a doubling gains less than 1 point of" in found.why
    assert "at most 0.5" in found.why


def test_where_the_last_doubling_pays_all_are_asked_for_and_more_foretold() -> None:
    # Gains of 8 and 4 points: 2 are next.
    found = judge((100, 200, 400), (0.5, 0.58, 0.62))
    assert found.suggested_fraction == 1.0
    assert "still gained 4.0 points" in found.why
    assert "about 2.0 more" in found.why


@pytest.mark.parametrize(("distance", "fraction"), [(20.0, 1 / 8), (1.0, 1.0)])
def test_easy_data_need_few_and_hard_ones_all(distance: float, fraction: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(800) % 4
    features_ND = torch.randn(800, 60, generator=generator)
    features_ND[torch.arange(800), labels_N] += distance
    accuracy = 1.0 if distance > 1 else 0.9
    found = learning_curve(features_ND, labels_N, 4, accuracy, generator=generator)
    assert found.sizes == [100, 200, 400, 800]
    assert found.accuracies[-1] == accuracy
    assert found.suggested_fraction == fraction


def test_scores_are_mean_distances_to_the_ten_nearest_others() -> None:
    points_ND = torch.randn(60, 3, generator=generator())
    scaled = (points_ND - points_ND.mean(dim=0)) / points_ND.std(dim=0, correction=0)
    expected = []
    for one in scaled.tolist():
        distances = sorted(math.dist(one, other) for other in scaled.tolist())
        expected.append(sum(distances[1:11]) / 10)
    median = sorted(expected)[29]
    found = find_outliers(points_ND, generator=generator())
    assert found.scores_N.tolist() == pytest.approx([one / median for one in expected], rel=1e-3)


@pytest.mark.parametrize("num_features", [5, 400])
def test_what_is_far_from_everything_comes_first(num_features: int) -> None:
    points_ND = torch.randn(300, num_features, generator=generator())
    points_ND[7] *= 8
    points_ND[3] *= 30
    assert find_outliers(points_ND, generator=generator()).ranked()[:2].tolist() == [3, 7]
