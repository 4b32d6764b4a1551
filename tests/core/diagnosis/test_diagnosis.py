import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from lipt.core.diagnosis.diagnosis import (
    DataFindings,
    DiagnosisFile,
    OutlierScores,
    confusions,
    diagnosis_of,
    find_outliers,
    imbalance,
    learning_curve,
    sample_sizes,
    stratified_order,
    suggest_size,
)
from lipt.core.diagnosis.duplicates import DuplicateGroups
from lipt.core.diagnosis.findings import Confusion, Imbalance, Outliers, Redundancy
from lipt.core.diagnosis.label_errors import (
    LabelQuality,
    find_label_errors,
    fit_of_targets,
    label_confidence,
    second_head_helps,
)
from lipt.core.diagnosis.noise import NoiseRate, NoiseRates
from lipt.data.dataset import IdMapping
from lipt.data.targets.kinds import TargetKind
from tests.core.selection.builders import of_probabilities, signals_of

LABELS_N = torch.tensor([0, 0, 0, 1, 1, 1])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def findings() -> DataFindings:
    chances_NC = torch.tensor(
        [[0.9, 0.1], [0.8, 0.2], [0.01, 0.99], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]]
    )
    scores_N = torch.tensor([1.0, 1.0, 9.0, 1.0, 1.0, 5.0])
    return DataFindings(
        find_label_errors(of_probabilities(chances_NC, LABELS_N)),
        DuplicateGroups(torch.tensor([0, 0, 0, 3, 5, 5]), 1, 2, 0, 0.96),
        OutlierScores(scores_N, fence=4.0),
        suggest_size((3, 6), (0.5, 0.6)),
    )


@pytest.fixture
def diagnosis(findings: DataFindings) -> DiagnosisFile:
    return put_together(findings, LABELS_N)


def put_together(findings: DataFindings, labels_N: Tensor) -> DiagnosisFile:
    return diagnosis_of(
        findings,
        labels_N=labels_N,
        class_names=["cat", "dog"],
        proxy={"proxy": "ridge:patches", "accuracy": 0.6},
        redundancy=Redundancy(share_for_90=0.5, examples_for_90=3, per_class=(), sampled=6),
    )


def test_a_file_has_every_finding(diagnosis: DiagnosisFile) -> None:
    found = diagnosis.findings
    assert (found.num_examples, found.class_counts, found.num_full_classes) == (6, (3, 3), 2)
    errors = found.label_errors
    assert errors.num_suspects == 1
    assert [(issue.id, issue.given, issue.suggested) for issue in errors.ranked] == [(2, 0, 1)]
    assert [one.suspects for one in errors.per_class] == [1, 0]
    assert found.confusion == (Confusion(given=0, suggested=1, count=1, share=1 / 3),)
    assert found.duplicates.groups == ((0, 1, 2), (5, 4))
    assert found.duplicates.surplus == 3
    assert found.imbalance.ratio == 1.0
    assert found.outliers == Outliers(count=2, ranked=(2, 5))
    assert found.learnability.sizes == (3, 6)


def test_a_file_has_columns_and_the_findings(diagnosis: DiagnosisFile, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(diagnosis.pack())
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()["diagnosis"])
        assert told == diagnosis.findings.model_dump(mode="json")
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
    read = DiagnosisFile.load(path)
    assert read.findings == diagnosis.findings
    assert torch.equal(read.columns["outlier_score"], diagnosis.columns["outlier_score"])


def test_findings_are_by_id_without_excluded_examples(findings: DataFindings) -> None:
    # Places 0 to 5 are the ids 0, 2, 3, 4, 6, 7.
    labels_N = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1])
    found = put_together(findings.by_id(IdMapping((1, 5)), labels_N), labels_N)
    read = found.findings
    assert (read.num_examples, read.class_counts) == (8, (4, 4))
    assert [issue.id for issue in read.label_errors.ranked] == [3]
    assert read.duplicates.groups == ((0, 2, 3), (7, 6))
    assert read.outliers == Outliers(count=2, ranked=(3, 7))
    columns = found.columns
    assert columns["given_label"].tolist() == labels_N.tolist()
    assert columns["suggested_label"].tolist() == [0, 1, 0, 1, 1, 0, 1, 1]
    assert columns["suspect"].nonzero().flatten().tolist() == [3]
    assert columns["duplicate_of"].tolist() == [0, 1, 0, 0, 4, 5, 7, 7]
    assert columns["label_quality"][[1, 5]].tolist() == [findings.label_errors.quality_N.max()] * 2


JOINT_CC = torch.tensor([[50, 4, 0], [10, 30, 4], [0, 0, 9]])
COUNTS_C = torch.tensor([60, 50, 10])


def test_confusions_and_imbalance_by_hand() -> None:
    found = confusions(JOINT_CC, COUNTS_C)
    assert [(pair.given, pair.suggested, pair.count, pair.share) for pair in found] == [
        (1, 0, 10, 0.2),
        (0, 1, 4, 4 / 60),
        (1, 2, 4, 0.08),
    ]
    assert imbalance([20, 10, 0, 10]) == Imbalance(ratio=2.0, smallest=1, largest=0)


def test_learning_curve_samples_are_stratified_halves() -> None:
    assert sample_sizes(1000) == [125, 250, 500]
    assert sample_sizes(50_000) == [1562, 3125, 6250, 12_500]
    assert sample_sizes(150) == []
    labels_N = torch.tensor([0] * 80 + [1] * 40 + [3] * 8)
    order_N = stratified_order(labels_N, torch.Generator().manual_seed(0))
    assert sorted(order_N.tolist()) == list(range(128))
    for size in (16, 32, 64):
        counts = labels_N[order_N[:size]].bincount(minlength=4).tolist()
        assert counts == [size * 10 // 16, size * 5 // 16, 0, size // 16]


def test_the_suggested_fraction_is_where_doubling_gains_little() -> None:
    found = suggest_size((100, 200, 400, 800), (0.5, 0.6, 0.605, 0.61))
    assert found.suggested_fraction == 0.25
    assert "from 200 examples on a doubling gains less than 1 point of" in found.reason
    assert "at most 0.5" in found.reason
    # Gains of 8 and 4 points: 2 are next.
    found = suggest_size((100, 200, 400), (0.5, 0.58, 0.62))
    assert found.suggested_fraction == 1.0
    assert "still gained 4.0 points" in found.reason
    assert "about 2.0 more" in found.reason


@pytest.mark.parametrize(("distance", "fraction"), [(20.0, 1 / 8), (1.0, 1.0)])
def test_easy_data_needs_few_examples_and_hard_data_all(distance: float, fraction: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(800) % 4
    features_ND = torch.randn(800, 60, generator=generator)
    features_ND[torch.arange(800), labels_N] += distance
    accuracy = 1.0 if distance > 1 else 0.9
    found = learning_curve(features_ND, labels_N, 4, accuracy, generator=generator)
    assert found.sizes == (100, 200, 400, 800)
    assert found.accuracies[-1] == accuracy
    assert found.suggested_fraction == fraction


def test_outlier_scores_are_mean_distances_to_ten_neighbours() -> None:
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
def test_the_farthest_outlier_is_first(num_features: int) -> None:
    points_ND = torch.randn(300, num_features, generator=generator())
    points_ND[7] *= 8
    points_ND[3] *= 30
    assert find_outliers(points_ND, generator=generator()).ranked()[:2].tolist() == [3, 7]


PROBABILITIES_NC = torch.tensor(
    [
        [0.9, 0.1, 0.0],  # labelled 0
        [0.5, 0.5, 0.0],  # labelled 0
        [0.2, 0.8, 0.0],  # labelled 0: taken for 1
        [0.4, 0.6, 0.0],  # labelled 1
        [0.3, 0.7, 0.0],  # labelled 1
        [0.52, 0.48, 0.0],  # labelled 1: taken for 0, not surely
    ]
)


def test_suspects_and_quality_by_hand() -> None:
    # Seven times, as a class has few examples below 20.
    found = find_label_errors(of_probabilities(PROBABILITIES_NC.repeat(7, 1), LABELS_N.repeat(7)))
    # Thresholds are (0.9 + 0.5 + 0.2) / 3 = 0.533 and (0.6 + 0.7 + 0.48) / 3 = 0.593.
    assert found.suggested_N[:6].tolist() == [0, 0, 1, 1, 1, 0]
    # 0.8 >= 0.593 for class 1, but 0.52 < 0.533 for class 0.
    assert found.suspects_N.nonzero().flatten().tolist() == list(range(2, 42, 6))
    # Sure are 0 (0.9), 2 (0.8), 3 (0.6) and 4 (0.7).
    assert found.joint_CC.tolist() == [[7, 7, 0], [0, 14, 0], [0, 0, 0]]
    own_and_other = [(0.9, 0.1), (0.5, 0.5), (0.2, 0.8), (0.6, 0.4), (0.7, 0.3), (0.48, 0.52)]
    expected = [own / (own + math.sqrt(other)) for own, other in own_and_other]
    assert found.quality_N[:6].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("count", "is_suspect"), [(1, False), (5, False), (19, False), (20, True)])
def test_few_examples_of_a_class_suspect_no_label_of_another(
    count: int, *, is_suspect: bool
) -> None:
    # The head does not recognize class 1, whose mean probability is 0.5. One of class 0 looks like
    # it at 0.52, where the threshold is (0.5 * count + 20 - count) / 20, at most 0.525 up to 19.
    labels_N = torch.tensor([0] * 30 + [1] * count)
    probabilities_NC = torch.tensor([[0.9, 0.1]]).repeat(30, 1)
    probabilities_NC[0] = torch.tensor([0.48, 0.52])
    probabilities_NC = torch.cat([probabilities_NC, torch.full((count, 2), 0.5)])
    found = find_label_errors(of_probabilities(probabilities_NC, labels_N))
    assert found.suspects_N.nonzero().flatten().tolist() == [0] * is_suspect


def test_label_quality_of_a_number_falls_with_its_distance() -> None:
    errors_NC = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, -1.0]])
    signals = signals_of(errors_NC=errors_NC, labels=[0, 2, 1], kind=TargetKind.NUMBER)
    found = fit_of_targets(signals, 3)
    # Residuals of 0, 5 and 1.
    assert found.quality_N.tolist() == pytest.approx([1.0, 1 / 6, 1 / 2])
    assert not found.suspects_N.any()
    assert found.suggested_N.tolist() == [0, 2, 1]
    assert found.noise.overall.rate == 0.0
    assert len(found.noise.per_class) == 3


def judged(quality: list[float], *, rate: float, low: float, num_classes: int = 2) -> LabelQuality:
    """What a first look has found, as far as the second one asks."""
    none = torch.zeros(len(quality), dtype=torch.int64)
    noise = NoiseRates(NoiseRate(rate, low, 1.0), ())
    joint_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    return LabelQuality(torch.tensor(quality), none, none.bool(), joint_CC, noise)


def test_the_second_head_excludes_the_lowest_quality_labels() -> None:
    labels_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    # Class 1 is judged worse as a whole: it keeps its teachers all the same.
    found = judged([0.9, 0.2, 0.8, 0.7, 0.1, 0.05, 0.15, 0.12], rate=0.25, low=0.1)
    confidence_N = label_confidence(found, labels_N)
    assert confidence_N is not None
    assert (confidence_N < 1).nonzero().flatten().tolist() == [1, 5]
    assert confidence_N.min() > 0


def test_doubtful_labels_are_the_least_of_each_class_and_ties_keep_their_order() -> None:
    draws = generator()
    labels_N = torch.randint(0, 5, (300,), generator=draws)
    labels_N[labels_N == 3] = 4
    quality_N = torch.randint(0, 8, (300,), generator=draws) / 8
    found = replace(judged(quality_N.tolist(), rate=0.25, low=0.1), joint_CC=torch.zeros(6, 6))
    confidence_N = label_confidence(found, labels_N)
    assert confidence_N is not None
    for label in range(6):
        rows = torch.nonzero(labels_N == label).flatten().tolist()
        least = sorted(rows, key=lambda row: (float(quality_N[row]), row))
        doubtful = [row for row in rows if confidence_N[row] < 1]
        assert doubtful == sorted(least[: round(0.25 * len(rows))])


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_there_is_no_second_head_without_surely_wrong_labels(rate: float) -> None:
    assert label_confidence(judged([0.1, 0.9], rate=rate, low=0.01), torch.tensor([0, 1])) is None


def test_with_25_examples_of_a_class_per_feature_a_second_head_does_not_help() -> None:
    # Class 1 has no example.
    labels_N = torch.arange(100) % 2 * 2
    assert not second_head_helps(labels_N, num_features=2)
    assert second_head_helps(labels_N, num_features=3)


def test_both_heads_rate_labels_and_the_second_suggests_them() -> None:
    labels_N = torch.tensor([0, 1])
    first = of_probabilities([[0.6, 0.4], [0.3, 0.7]], labels_N)
    second = of_probabilities([[0.2, 0.8], [0.1, 0.9]], labels_N)
    one, other = find_label_errors(first), find_label_errors(second)
    both = find_label_errors(replace(first, second_errors_NC=second.errors_NC))
    assert one.suggested_N.tolist() == [0, 1]
    assert both.suggested_N.tolist() == [1, 1]
    torch.testing.assert_close(both.quality_N, (one.quality_N * other.quality_N).sqrt())
    # The second head has not learned from the labels that would have to be counted.
    assert both.noise == one.noise
