"""Class probabilities of a user's own model replace those of a head, as in cleanlab."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import lipt
from lipt.common.errors import InvalidRequestError, ProbabilitiesError
from lipt.core.signals.probabilities import read_probabilities
from lipt.pretraining import Pretrained
from lipt.trainer.diagnosis.sentences import noise_text, proxy_text

pd = pytest.importorskip("pandas")

WRONG = [5, 70, 131]
SMALL = {"learners": {"num_learners": 1, "num_steps": 2, "num_minibatches": 4, "batch_size": 16}}


def table() -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.float64]]:
    """Columns that say nothing of their class, labels of which three are wrong, and the truth."""
    generator = np.random.default_rng(0)
    truth = np.arange(180) % 3
    given = truth.copy()
    given[WRONG] = (given[WRONG] + 1) % 3
    sureness = generator.uniform(0.8, 0.95, len(truth))
    probabilities = np.repeat(((1 - sureness) / 2)[:, None], 3, axis=1)
    probabilities[np.arange(len(truth)), truth] = sureness
    points = generator.normal(size=(len(truth), 4)).astype(np.float32)
    return points, np.array(["ash", "elm", "oak"])[given], probabilities


def test_label_errors_come_from_the_given_probabilities_alone() -> None:
    points, labels, probabilities = table()
    told = lipt.diagnose((points, labels), pred_probs=probabilities, progress=False)
    assert sorted(issue.id for issue in told.label_issues()) == WRONG
    assert told.suggested_label[WRONG].tolist() == probabilities[WRONG].argmax(axis=1).tolist()
    # A mean over classes: two of 62, none of 59 and one of 59 are called wrong.
    assert told.findings.head_accuracy == pytest.approx((60 / 62 + 1 + 58 / 59) / 3)
    assert "pred_probs that are right on 98.4%" in noise_text(told.findings)
    assert proxy_text(told.findings) == "pred_probs, accuracy 98.4%, beside the features columns"
    # The rest is the proxy's: a head on these columns guesses.
    own = lipt.diagnose((points, labels), progress=False)
    assert own.findings.head_accuracy == pytest.approx(1 / 3, abs=0.15)
    assert told.findings.learnability == own.findings.learnability
    assert np.array_equal(told.outlier_score, own.outlier_score)


def test_auto_excludes_the_wrong_labels_and_trains_nothing() -> None:
    points, labels, probabilities = table()
    pretrained = Pretrained((points, labels), run=SMALL, progress=False)
    subset = pretrained.select(fraction=0.9, pred_probs=torch.from_numpy(probabilities))
    assert "training_seconds" not in pretrained.seconds
    assert subset.manifest["proxy"]["unneeded"] == "probabilities"
    assert "no learner is needed: pred_probs were given" in subset.findings
    few = pretrained.select(fraction=0.05, pred_probs=probabilities)
    assert not set(few.indices.tolist()) & set(WRONG)
    assert any("judged by pred_probs, right on 98.4%" in sentence for sentence in few.findings)
    # Without them the head guesses, and nothing can be excluded.
    guess = pretrained.select(fraction=0.05, proxy="ridge:columns")
    assert "too few to go by" in guess.findings[0]


def test_scores_of_errors_and_soft_labels_are_those_of_the_probabilities() -> None:
    points, labels, probabilities = table()
    asked: dict[str, Any] = {"run": SMALL, "pred_probs": probabilities, "progress": False}
    hardest = lipt.select((points, labels), budget=3, strategy="el2n", balanced=False, **asked)
    assert hardest.indices.tolist() == WRONG
    taught = lipt.select((points, labels), budget=9, strategy="uniform", soft_labels=True, **asked)
    assert taught.soft_labels is not None
    assert np.allclose(taught.soft_labels, probabilities[taught.indices], atol=1e-3)
    assert "of the labels not chosen, pred_probs are right on" in taught.findings[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p[:, :2], r"are 180 x 2, and .* 180 examples of 3 classes, .*: ash, elm, oak"),
        (lambda p: p[:-1], r"are 179 x 3.*a row for each example and a column for each class"),
        (lambda p: p[:, 0], r"are 180, and"),
        (lambda p: np.where(p == p[7, 1], np.nan, p), r"row 7 .* has nan for class elm"),
        (lambda p: np.where(p == p[9, 0], -0.5, p), r"row 9 .* has -0.5 for class ash.*softmax"),
        (lambda p: p * (1 + (np.arange(180) == 8)[:, None] * 0.05), r"row 8 .* sums to 1.05 inst"),
        (lambda p: p.astype(str) + "%", r"are no numbers"),
        (
            lambda p: pd.DataFrame(p, columns=["oak", "ash", "elm"]),
            r"are oak, ash, elm, and .* 3 classes, in this order: ash, elm, oak",
        ),
    ],
)
def test_what_is_no_probabilities_of_these_classes_is_refused(change: Any, words: str) -> None:
    points, labels, probabilities = table()
    with pytest.raises(ProbabilitiesError, match=words):
        lipt.diagnose((points, labels), pred_probs=change(probabilities), progress=False)


def test_halves_and_frames_are_probabilities_whose_rows_sum_to_one() -> None:
    points, labels, probabilities = table()
    opened = lipt.open_dataset((points, labels))
    frame = pd.DataFrame(probabilities, columns=["ash", "elm", "oak"])
    for given in (probabilities.astype(np.float16), frame, torch.from_numpy(probabilities)):
        read_NC = read_probabilities(given, opened)
        assert read_NC.sum(dim=1).tolist() == pytest.approx([1.0] * 180, abs=1e-6)
        assert np.allclose(read_NC, probabilities, atol=1e-3)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strategy": "uniform"}, "'uniform' reads no class probabilities"),
        ({"strategy": "grand", "options": {"parameters": "all"}}, "'grand' reads no class"),
        ({"proxy": "soup"}, "pred_probs and the proxy soup were both given"),
        ({"strategy": "kcenter", "labels": "none"}, "pred_probs and labels=none were both given"),
        (
            {"strategy": "el2n", "options": {"pretraining": "epochs:1"}},
            "pred_probs and pretraining=epochs:1 were both given",
        ),
    ],
)
def test_requests_that_contradict_them_are_refused(asked: dict[str, Any], words: str) -> None:
    points, labels, probabilities = table()
    asked = {"strategy": "auto", **asked}
    with pytest.raises(InvalidRequestError, match=words):
        lipt.select((points, labels), pred_probs=probabilities, run=SMALL, progress=False, **asked)


def test_targets_that_are_no_classes_have_none() -> None:
    points, _, probabilities = table()
    with pytest.raises(ProbabilitiesError, match="one class per example, and the data is"):
        lipt.diagnose((points, points[:, 0] * 2.5), pred_probs=probabilities, progress=False)


def test_a_service_refuses_them_in_a_sentence() -> None:
    client = lipt.Client("127.0.0.1:1")
    for call in (client.subset, client.diagnose):
        with pytest.raises(InvalidRequestError, match=r"takes no pred_probs\. Give them to"):
            call(pred_probs=[[1.0]])  # type: ignore[operator]
