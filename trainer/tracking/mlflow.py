"""MLflow: an account as one run of an experiment, with each subset in a folder of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.tracking.account import Account

# MLflow's own bounds, of one call and of one value.
_MAX_PARAMS, _MAX_METRICS, _MAX_CHARACTERS = 100, 1000, 500


def to_mlflow(account: Account, experiment: str) -> str:
    """Log an account to the server that MLflow's own settings name (MLFLOW_TRACKING_URI).

    Args:
        account: what is told.
        experiment: its name; made where there is none.

    Returns:
        The run's id at MLflow.

    Raises:
        MissingExtraError: mlflow is not installed.
        ConfigError: MLflow does not take it; the message has its reason.
    """
    tracking = _import("mlflow.tracking")
    try:
        return _log(tracking.MlflowClient(), account, experiment)
    except Exception as error:
        raise ConfigError(
            f"MLflow does not take run {account.name}: {type(error).__name__}: {error}. See to "
            "MLFLOW_TRACKING_URI and the server that it names."
        ) from error


def _import(module: str) -> Any:
    return import_extra(module, package="mlflow-skinny", extra="loggers", needed_for="MLflow")


def _log(client: Any, account: Account, experiment: str) -> str:
    entities = _import("mlflow.entities")
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else client.create_experiment(experiment)
    run = client.create_run(experiment_id, tags=dict(account.tags), run_name=account.name)
    run_id, now = str(run.info.run_id), int(run.info.start_time)
    params = [
        entities.Param(name, value[:_MAX_CHARACTERS]) for name, value in account.params.items()
    ]
    metrics = [entities.Metric(name, value, now, 0) for name, value in account.measures.items()]
    metrics += [entities.Metric(one.name, one.value, now, one.step) for one in account.curve]
    for first in range(0, len(params), _MAX_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
    for first in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + _MAX_METRICS])
    with tempfile.TemporaryDirectory() as folder:
        for path, content in account.files.items():
            _write(Path(folder), PurePosixPath(path), content)
        for subset in account.subsets:
            for path, content in subset.files.items():
                _write(Path(folder), PurePosixPath("subsets", subset.name, path), content)
        client.log_artifacts(run_id, folder)
    client.set_terminated(run_id)
    return run_id


def _write(folder: Path, path: PurePosixPath, content: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
