import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lipt.common.errors import ConfigError, MissingExtraError
from lipt.common.states import LearnerState, RunState
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.tracking import DIGESTS, Logger, LoggerWarning, run_measures, run_tags, track
from lipt.trainer.views import BlobView, SoupView
from tests.trainer.made_up import (
    DISCARDED,
    KEPT,
    made_up_learner,
    made_up_record,
    made_up_run,
    made_up_subset,
)

pytestmark = pytest.mark.filterwarnings("ignore")

RUN = made_up_run(
    state=RunState.READY,
    soup=SoupView(0.1, 0.4, 0.5, 0.6, 1, 200),
    pretrained_weights=BlobView("ab" * 32, 7),
    learners=(
        made_up_learner(0, state=LearnerState.DONE, ingredient=DISCARDED),
        made_up_learner(1, state=LearnerState.DONE, ingredient=KEPT),
    ),
)
SUBSET = made_up_subset([1, 3], strategy="grand", run_id="r-1", run_name="demo-0")


def record(epoch: int, **changes: Any) -> EpochRecord:
    changes = {"subset_digest": SUBSET.digest, **changes}
    return made_up_record(epoch, step=3 * epoch, loss=1.0 / epoch, **changes)


RECORDS = (record(1), record(2, test_accuracy=0.25))


def test_a_run_has_its_soup_s_measures_and_tags() -> None:
    assert run_measures(RUN)["soup.soup_accuracy"] == 0.6
    tags = run_tags(RUN, [SUBSET])
    assert (tags[DIGESTS], tags["lipt.theta_p_sha256"]) == (SUBSET.digest, "ab" * 32)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On files: the store that needs no package besides mlflow-skinny."""
    module = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    return module.MlflowClient()


def test_mlflow_has_the_run_and_its_trainings_with_links(mlflow: Any, tmp_path: Path) -> None:
    run_id = track("mlflow", "subsets", RUN, [SUBSET], files={"report.html": "<html>"})
    log = Logger("mlflow", "subsets", SUBSET)
    for one in RECORDS:
        log(one)
    experiment = mlflow.get_experiment_by_name("subsets").experiment_id
    run, training = (
        mlflow.search_runs([experiment], f"tags.\"{tag}\" LIKE '%{SUBSET.digest}%'")
        for tag in (DIGESTS, "lipt.subset_digest")
    )
    assert [one.info.run_id for one in run] == [run_id]
    assert (run[0].info.run_name, run[0].info.status) == ("demo", "FINISHED")
    assert run[0].data.params["learners.num_steps"] == "5"
    assert run[0].data.params["model"] == "resnet8"
    assert run[0].data.metrics["soup.soup_accuracy"] == 0.6
    history = mlflow.get_metric_history(run_id, "soup.accuracy_after")
    assert [(one.step, one.value) for one in history] == [(0, 0.5), (1, 0.5)]
    assert training[0].info.status == "FINISHED"
    assert training[0].data.tags["lipt.run_name"] == "demo-0"
    history = mlflow.get_metric_history(training[0].info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(3, 1.0), (6, 0.5)]
    for owner, path in (
        (run[0], f"subsets/grand-{SUBSET.digest[:12]}/subset.json"),
        (training[0], "subset.json"),
    ):
        kept = mlflow.download_artifacts(owner.info.run_id, path, str(tmp_path))
        assert Subset.load(kept) == SUBSET


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    run_id = track("wandb", "subsets", RUN, [SUBSET], files={"report.html": "<html>"})
    log = Logger("wandb", "subsets", SUBSET)
    for one in RECORDS:
        log(one)
    wandb.teardown()  # its own process writes, and has done so when it has ended
    (run,) = tmp_path.glob(f"wandb/offline-run-*/run-{run_id}.wandb")
    written = {path.name: path.read_bytes() for path in tmp_path.glob("wandb/*/run-*.wandb")}
    of_run = written.pop(run.name)
    (of_training,) = written.values()
    name = f"grand-{SUBSET.digest[:12]}".encode()
    for told in (SUBSET.digest.encode(), name, b"soup.accuracy_after", b"run-demo"):
        assert told in of_run
    for told in (SUBSET.digest.encode(), name, b"images_per_second"):
        assert told in of_training


class FakePackage:
    """Stands for a package and all that its calls return: keeps (call, arguments)."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.broken = False
        self.info = SimpleNamespace(run_id="r-1")
        self.config = self.entities = self

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            if self.broken:
                raise RuntimeError("the disk is full")
            self.told.append((name, *positional, *named.values()))
            return self

        return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePackage:
    """In the place of all three packages."""
    package = FakePackage()
    for name in ("tensorboard", "torch.utils.tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, package)  # type: ignore[arg-type]
    return package


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_failed_write_costs_a_warning(fake: FakePackage, name: str) -> None:
    log = Logger(name, "x")
    fake.broken = True
    with pytest.warns(LoggerWarning, match=r"did not take epoch 1: .*disk is full.*goes on"):
        log(RECORDS[0])
    fake.broken = False
    log(RECORDS[1])
    assert fake.told


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_fails_to_start_is_an_error(fake: FakePackage, name: str) -> None:
    fake.broken = True
    with pytest.raises(ConfigError, match=r"cannot be logged to: .*disk is full"):
        Logger(name, "x")
    with pytest.raises(ConfigError, match=r"cannot be logged to: .*disk is full"):
        track(name, "x", RUN, [], files={})


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow-skinny")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*pip install '\.\[loggers\]'"):
        Logger(name, "x")


def test_only_changed_subsets_are_tracked(fake: FakePackage) -> None:
    log = Logger("mlflow", "experiment")
    for digest, epoch in (("a", 1), ("a", 2), ("b", 3)):
        log(record(epoch, num_steps=30, subset_digest=digest))
    told = [call[2:] for call in fake.told if call[0] == "set_tag"]
    assert told == [("lipt.subset_digest", "a"), ("lipt.subset_digest", "b")]
