"""MLflow and Weights & Biases themselves, on disk: what was told is read back from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import ConfigError, MissingExtraError
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.tracking.account import Account, account_of
from lipt.trainer.tracking.mlflow import to_mlflow
from lipt.trainer.tracking.wandb import to_wandb
from tests.trainer.tracking.test_account import RUN, SUBSET

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


def test_an_experiment_takes_one_run_after_another(account: Account, mlflow: Any) -> None:
    first, second = to_mlflow(account, "subsets"), to_mlflow(account, "subsets")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("subsets")
    found = {run.info.run_id for run in client.search_runs([experiment.experiment_id])}
    assert found == {first, second}


def test_a_tracking_server_that_is_away_is_named(
    account: Account, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "no-such-scheme://nowhere")
    with pytest.raises(ConfigError, match=r"MLflow does not take run demo.*MLFLOW_TRACKING_URI"):
        to_mlflow(account, "subsets")


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
