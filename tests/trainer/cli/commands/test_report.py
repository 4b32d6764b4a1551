import json
from pathlib import Path
from typing import Any

import pytest

from lipt.trainer.client.client import Client
from tests.relay import Relay
from tests.service import READY


def test_a_run_and_its_subset_go_to_mlflow(
    relay: Relay, lipt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    report = tmp_path / "report.html"
    report.write_text("<html>")
    result = lipt(
        *("track", READY, "--strategies", "uniform", "--mlflow", "subsets", "--json"),
        *("--report", str(report)),
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    with Client(relay.address) as coordinator:
        subset = coordinator.subset(READY, "uniform", fraction=0.1)
    assert [tags["lipt.subset_digest"] for tags in told["subsets"]] == [subset.digest]
    client = mlflow.MlflowClient()
    names = {file.path for file in client.list_artifacts(told["logged"]["mlflow"])}
    assert names == {"run.json", "report.html", "subsets"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give --mlflow EXPERIMENT, --wandb PROJECT"),
        (("--mlflow", "x", "--fraction", "2"), "less than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    relay: Relay, lipt: Any, arguments: tuple[str, ...], told: str
) -> None:
    result = lipt("track", *arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert relay.calls == []
