"""The loggers: against the real packages where they are installed, and always against fakes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lipt.common.errors import ConfigError, MissingExtraError
from lipt.trainer.main_training import callbacks
from lipt.trainer.main_training.callbacks import LoggerWarning
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_record, made_up_subset

SUBSET = made_up_subset([1, 3], run_id="r-1", run_name="demo-0")


def record(epoch: int, **changes: Any) -> EpochRecord:
    """One of two epochs of three steps."""
    return made_up_record(
        epoch, step=3 * epoch, loss=1.0 / epoch, subset_digest=SUBSET.digest, **changes
    )


RECORDS = (record(1), record(2, test_accuracy=0.25))


class FakeLogger:
    """Stands for a package: keeps what it was told, as (call, arguments)."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            if self.broken:
                raise RuntimeError("the disk is full")
            self.told.append((name, *positional, *named.values()))
            return SimpleNamespace(
                info=SimpleNamespace(run_id="r-1"),
                log=self.log,
                finish=self.end,
                config=self,
                log_artifact=self.log,
            )

        return call

    def log(self, *arguments: Any, **named: Any) -> None:
        self.__getattr__("log")(*arguments, **named)

    def end(self) -> None:
        self.told.append(("finish",))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLogger:
    """In the place of all three packages."""
    logger = FakeLogger()
    writer = ModuleType("torch.utils.tensorboard")
    writer.SummaryWriter = lambda log_dir: logger  # type: ignore[attr-defined]
    for name, module in (
        ("tensorboard", ModuleType("tensorboard")),
        ("torch.utils.tensorboard", writer),
        ("wandb", logger),
        ("mlflow", logger),
    ):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    return logger


MAKERS = (callbacks.tensorboard, callbacks.wandb, callbacks.mlflow)


@pytest.mark.parametrize("make", MAKERS)
def test_what_cannot_be_written_costs_a_warning_and_no_training(
    fake: FakeLogger, make: Any
) -> None:
    log = make("x")
    fake.broken = True
    with pytest.warns(LoggerWarning, match=r"did not take epoch 1: .*disk is full.*goes on"):
        log(RECORDS[0])
    fake.broken = False
    log(RECORDS[1])
    assert fake.told


@pytest.mark.parametrize("make", MAKERS[1:])
def test_a_logger_that_does_not_begin_is_refused_at_once(fake: FakeLogger, make: Any) -> None:
    fake.broken = True
    with pytest.raises(ConfigError, match=r"cannot be logged to: .*disk is full.*train without"):
        make("x")


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [
        (callbacks.tensorboard, "tensorboard", "tensorboard"),
        (callbacks.wandb, "wandb", "wandb"),
        (callbacks.mlflow, "mlflow", "mlflow-skinny"),
    ],
    ids=["tensorboard", "wandb", "mlflow"],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, make: Any, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*pip install 'lipt\[loggers\]'"):
        make("x")


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_the_real_wandb_writes_a_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    log = callbacks.wandb("project")
    log.describe(SUBSET)
    for one in RECORDS:
        log(one)
    wandb.teardown()  # its own process writes, and has done so when it has ended
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    assert b"images_per_second" in content
    assert SUBSET.digest.encode() in content
    assert f"subset-{SUBSET.digest[:12]}".encode() in content


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_the_real_mlflow_knows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    # The store that needs no package besides mlflow-skinny.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    log = callbacks.mlflow("experiment", name="mine")
    log.describe(SUBSET)
    for one in RECORDS:
        log(one)
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'experiment'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(3, 1.0), (6, 0.5)]
    # From a digest to the models that were trained on it, and from these to the subset.
    wanted = f"tags.\"lipt.subset_digest\" = '{SUBSET.digest}'"
    (found,) = client.search_runs([experiment.experiment_id], wanted)
    assert found.data.tags["lipt.run_name"] == "demo-0"
    kept = client.download_artifacts(found.info.run_id, "subset.json", str(tmp_path))
    assert Subset.load(kept) == SUBSET


def test_a_subset_chosen_again_is_told_of_and_the_same_one_is_not(fake: FakeLogger) -> None:
    log = callbacks.mlflow("experiment")
    for digest, epoch in (("a", 1), ("a", 2), ("b", 3)):
        log(made_up_record(epoch, num_steps=30, subset_digest=digest))
    told = [call[1] for call in fake.told if call[0] == "set_tags"]
    assert told == [{"lipt.subset_digest": "a"}, {"lipt.subset_digest": "b"}]
