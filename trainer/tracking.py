"""Tracking: a run and its subsets in an experiment tracker, so that one is found from the other.

What a tracker is told is pure and the same for MLflow and Weights & Biases. For `lipt track`, and
for whoever logs by themselves: `Subset.tags`.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView
from lipt.trainer.writing.formatting import to_jsonable

# Tag under which a tracker's search finds every subset of a run.
DIGESTS = "lipt.subset_digests"


@dataclass(frozen=True)
class Point:
    """A measure at a step: of the soup, after so many learners were offered."""

    name: str
    value: float
    step: int


@dataclass(frozen=True)
class TrackedSubset:
    """A subset as a tracker keeps it.

    name: of its folder or artifact: the strategy and the beginning of the digest.
    """

    name: str
    tags: Mapping[str, str]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Account:
    """What a tracker is told.

    params: the configuration, flat, by names with dots.
    measures: accuracies, seconds and bytes at the run's end.
    curve: the soup's accuracy as it grew.
    files: by path; the report, tables, and the run itself as JSON.
    """

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    measures: Mapping[str, float]
    curve: Sequence[Point]
    files: Mapping[str, bytes]
    subsets: Sequence[TrackedSubset]


def account_of(
    run: RunView,
    subsets: Iterable[Subset],
    *,
    files: Mapping[str, bytes],
    trials: Iterable[Trial] = (),
) -> Account:
    """All that is known of a run that is ready.

    Args:
        run: with its learners.
        subsets: that were chosen on it.
        files: by name, such as its report.
        trials: of a comparison, whose mean accuracies become measures.
    """
    tracked = [_tracked(subset) for subset in subsets]
    tags = {"lipt.run_id": run.run_id, "lipt.fingerprint": run.fingerprint}
    if run.pretrained_weights is not None:
        tags["lipt.theta_p_sha256"] = run.pretrained_weights.sha256
    if tracked:
        tags[DIGESTS] = ",".join(one.tags["lipt.subset_digest"] for one in tracked)
    record = json.dumps(to_jsonable(run), indent=2).encode()
    return Account(
        name=run.label,
        params=dict(_flat(to_jsonable(run.config))),
        tags=tags,
        measures=_measures(run) | _accuracies(trials),
        curve=_curve(run),
        files={"run.json": record, **files},
        subsets=tracked,
    )


def _tracked(subset: Subset) -> TrackedSubset:
    return TrackedSubset(
        name=f"{subset.strategy}-{subset.digest[:12]}",
        tags=subset.tags,
        files={
            "subset.json": subset.to_json().encode(),
            "manifest.json": json.dumps(to_jsonable(subset.manifest), indent=2).encode(),
        },
    )


def _flat(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _measures(run: RunView) -> dict[str, float]:
    measures: dict[str, float] = {}
    for group, view in (("soup", run.soup), ("costs", run.costs)):
        if view is not None:
            measures |= {f"{group}.{name}": float(item) for name, item in vars(view).items()}
    return measures


def _accuracies(trials: Iterable[Trial]) -> dict[str, float]:
    of_cells: defaultdict[str, list[float]] = defaultdict(list)
    for trial in trials:
        of_cells[f"accuracy.{trial.strategy}.{trial.fraction:g}"].append(trial.test_accuracy)
    return {name: fmean(values) for name, values in of_cells.items()}


def _curve(run: RunView) -> list[Point]:
    parts = [one.ingredient for one in run.learners if one.ingredient is not None]
    return [
        Point(name, value, part.position)
        for part in sorted(parts, key=lambda part: part.position)
        for name, value in (
            ("soup.accuracy_after", part.soup_accuracy),
            ("soup.learner_accuracy", part.accuracy),
            ("soup.alpha", part.alpha),
        )
    ]


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
    tracking = _import_mlflow("mlflow.tracking")
    try:
        return _log_to_mlflow(tracking.MlflowClient(), account, experiment)
    except Exception as error:
        raise ConfigError(
            f"MLflow does not take run {account.name}: {type(error).__name__}: {error}. See to "
            "MLFLOW_TRACKING_URI and the server that it names."
        ) from error


def _import_mlflow(module: str) -> Any:
    return import_extra(module, package="mlflow-skinny", extra="loggers", needed_for="MLflow")


def _log_to_mlflow(client: Any, account: Account, experiment: str) -> str:
    entities = _import_mlflow("mlflow.entities")
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


# Of the artifacts that subsets are.
SUBSET = "subset"
_REPORT = "lipt-run"


def to_wandb(account: Account, project: str) -> str:
    """Log an account where Weights & Biases' own settings say (WANDB_MODE=offline: on disk).

    Returns:
        The run's id there.

    Raises:
        MissingExtraError: wandb is not installed.
        ConfigError: it does not take it; the message has its reason.
    """
    wandb = import_extra("wandb", package="wandb", extra="loggers", needed_for="wandb")
    try:
        return _log_to_wandb(wandb, account, project)
    except Exception as error:
        raise ConfigError(
            f"wandb does not take run {account.name}: {type(error).__name__}: {error}. See to "
            "its settings (wandb login, WANDB_MODE)."
        ) from error


def _log_to_wandb(wandb: Any, account: Account, project: str) -> str:
    run = wandb.init(
        project=project,
        name=account.name,
        job_type="lipt",
        config=dict(account.params) | dict(account.tags),
    )
    steps: dict[int, dict[str, float]] = {}
    for point in account.curve:
        steps.setdefault(point.step, {})[point.name] = point.value
    for step, values in sorted(steps.items()):
        run.log(values, step=step)
    run.summary.update(dict(account.measures))
    run.log_artifact(_artifact(wandb, f"run-{account.name}", _REPORT, account.tags, account.files))
    for subset in account.subsets:
        made = _artifact(wandb, subset.name, SUBSET, subset.tags, subset.files)
        run.log_artifact(made, aliases=[subset.tags["lipt.subset_digest"][:12]])
    run.finish()
    return str(run.id)


def _artifact(wandb: Any, name: str, kind: str, tags: Any, files: Any) -> Any:
    # Names take letters, digits, dots, dashes and underscores.
    plain = "".join(one if one.isalnum() or one in ".-_" else "-" for one in name)
    artifact = wandb.Artifact(plain, type=kind, metadata=dict(tags))
    for path, content in files.items():
        with artifact.new_file(path, mode="wb") as file:
            file.write(content)
    return artifact
