"""What trackers are told; a made-up run, figures by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import MissingExtraError
from lipt.common.states import LearnerState, RunState
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.tracking import (
    DIGESTS,
    Account,
    account_of,
    subset_files,
    to_mlflow,
    to_wandb,
)
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


def test_a_run_is_found_by_its_subsets_and_they_come_whole() -> None:
    account = account_of(RUN, [SUBSET], files={"report.html": b"<html>"})
    assert account.tags[DIGESTS] == SUBSET.digest
    assert account.tags["lipt.theta_p_sha256"] == "ab" * 32
    (kept,) = account.subsets
    assert kept.tags == {
        "lipt.subset_digest": SUBSET.digest,
        "lipt.strategy": "grand",
        "lipt.num_examples": "2",
        "lipt.fingerprint": "f" * 64,
        "lipt.run_id": "r-1",
    }
    assert json.loads(subset_files(kept)["manifest.json"]) == {"run_id": "r-1"}
    assert json.loads(account.files["run.json"])["run_id"] == "r-1"
    assert account.files["report.html"] == b"<html>"


# Of the packages themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def account() -> Account:
    return account_of(RUN, [SUBSET], files={"report.html": b"<html>"})


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On files: the store that needs no package besides mlflow-skinny."""
    module = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    return module


def test_mlflow_has_the_run_its_curve_and_its_subset(
    account: Account, mlflow: Any, tmp_path: Path
) -> None:
    run_id = to_mlflow(account, "subsets")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("subsets")
    found = client.search_runs(
        [experiment.experiment_id], f"tags.\"lipt.subset_digests\" LIKE '%{SUBSET.digest}%'"
    )
    assert [run.info.run_id for run in found] == [run_id]
    run = client.get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
    assert run.data.params["learners.num_steps"] == "5"
    assert run.data.metrics["soup.soup_accuracy"] == 0.6
    history = client.get_metric_history(run_id, "soup.accuracy_after")
    assert [(one.step, one.value) for one in history] == [(0, 0.5), (1, 0.5)]
    path = f"subsets/grand-{SUBSET.digest[:12]}/subset.json"
    assert Subset.load(client.download_artifacts(run_id, path, str(tmp_path))) == SUBSET


def test_wandb_writes_the_run_and_its_artifacts_offline(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    run_id = to_wandb(account, "subsets")
    wandb.teardown()  # its own process writes, and has done so when it has ended
    (written,) = tmp_path.glob(f"wandb/offline-run-*/run-{run_id}.wandb")
    content = written.read_bytes()
    for told in (SUBSET.digest, f"grand-{SUBSET.digest[:12]}", "soup.accuracy_after", "run-demo"):
        assert told.encode() in content


@pytest.mark.parametrize(
    ("log", "package"), [(to_mlflow, "mlflow-skinny"), (to_wandb, "wandb")], ids=["mlflow", "wandb"]
)
def test_a_missing_package_is_named(
    account: Account, monkeypatch: pytest.MonkeyPatch, log: Any, package: str
) -> None:
    for module in ("mlflow.tracking", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'"):
        log(account, "subsets")
