"""What trackers are told; a made-up run, figures by hand."""

from __future__ import annotations

import json

from lipt.common.states import LearnerState, RunState
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.tracking.account import DIGESTS, Point, account_of
from lipt.trainer.views import BlobView, SoupView
from tests.trainer.made_up import (
    DISCARDED,
    KEPT,
    made_up_learner,
    made_up_run,
    made_up_subset,
    made_up_trial,
)

RUN = made_up_run(
    state=RunState.READY,
    soup=SoupView(0.1, 0.4, 0.5, 0.6, 1, 200),
    pretrained_weights=BlobView("ab" * 32, 7),
    learners=(
        made_up_learner(0, state=LearnerState.DONE, ingredient=DISCARDED),
        made_up_learner(1, state=LearnerState.DONE, ingredient=KEPT),
    ),
)
SUBSET = made_up_subset([1, 3], strategy="grand", run_id="r-1")


def test_settings_are_flat_and_texts_stay_as_they_are() -> None:
    account = account_of(RUN, [], files={})
    assert account.params["model"] == "resnet8"
    assert account.params["learners.num_steps"] == "5"
    assert all("{" not in value for value in account.params.values())


def test_measures_are_the_soup_s_and_the_means_of_a_comparison() -> None:
    trials = [
        made_up_trial(strategy="grand", fraction=0.1, test_accuracy=0.5),
        made_up_trial(strategy="grand", fraction=0.1, test_accuracy=0.7, seed=1),
        made_up_trial(strategy="uniform", fraction=0.05, test_accuracy=0.4),
    ]
    measures = account_of(RUN, [], files={}, trials=trials).measures
    assert measures["soup.soup_accuracy"] == 0.6
    assert measures["accuracy.grand.0.1"] == 0.6
    assert measures["accuracy.uniform.0.05"] == 0.4


def test_the_soup_grows_in_its_own_order() -> None:
    curve = account_of(RUN, [], files={}).curve
    assert curve[:3] == [
        Point("soup.accuracy_after", 0.5, 0),
        Point("soup.learner_accuracy", 0.5, 0),
        Point("soup.alpha", 0.3, 0),
    ]
    assert [point.value for point in curve if point.step == 1] == [0.5, 0.25, 0.0]


def test_a_run_is_found_by_its_subsets_and_they_come_whole() -> None:
    account = account_of(RUN, [SUBSET], files={"report.html": b"<html>"})
    assert account.tags[DIGESTS] == SUBSET.digest
    assert account.tags["lipt.theta_p_sha256"] == "ab" * 32
    (kept,) = account.subsets
    assert kept.name == f"grand-{SUBSET.digest[:12]}"
    assert kept.tags == {
        "lipt.subset_digest": SUBSET.digest,
        "lipt.strategy": "grand",
        "lipt.num_examples": "2",
        "lipt.fingerprint": "f" * 64,
        "lipt.run_id": "r-1",
    }
    assert Subset.from_json(kept.files["subset.json"].decode()) == SUBSET
    assert json.loads(kept.files["manifest.json"]) == {"run_id": "r-1"}
    assert json.loads(account.files["run.json"])["run_id"] == "r-1"
    assert account.files["report.html"] == b"<html>"


def test_a_run_without_subsets_claims_none() -> None:
    account = account_of(made_up_run(), [], files={})
    assert set(account.tags) == {"lipt.run_id", "lipt.fingerprint"}
    assert (account.curve, account.measures) == ([], {})
