"""Tracking: a run and its subsets in an experiment tracker, so that one is found from the other.

`account_of` decides what is logged, for MLflow and Weights & Biases alike; `lipt track` calls it.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView
from lipt.trainer.writing.formatting import to_jsonable

# The tag of a run by which a tracker finds its subsets.
DIGESTS = "lipt.subset_digests"

# MLflow's limits of one call and of one value.
_MAX_PARAMS, _MAX_METRICS, _MAX_CHARACTERS = 100, 1000, 500


class Point(NamedTuple):
    """A measure of the soup after that many learners."""

    name: str
    value: float
    step: int


@dataclass(frozen=True)
class Account:
    """What a tracker logs of a run.

    params: the configuration, flat, by names with dots.
    measures: accuracies, seconds and bytes at the run's end.
    curve: the growing soup's accuracies.
    files: content by path; the report, tables, and the run itself as JSON.
    """

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    measures: Mapping[str, float]
    curve: Sequence[Point]
    files: Mapping[str, bytes]
    subsets: Sequence[Subset]


def account_of(
    run: RunView,
    subsets: Iterable[Subset],
    *,
    files: Mapping[str, bytes],
    trials: Iterable[Trial] = (),
) -> Account:
    """The account of a ready run, with files such as its report, and trials' mean accuracies."""
    subsets = list(subsets)
    tags = {"lipt.run_id": run.run_id, "lipt.fingerprint": run.fingerprint}
    if run.pretrained_weights is not None:
        tags["lipt.theta_p_sha256"] = run.pretrained_weights.sha256
    if subsets:
        tags[DIGESTS] = ",".join(subset.digest for subset in subsets)
    measures: dict[str, float] = {}
    for group, view in (("soup", run.soup), ("costs", run.costs)):
        if view is not None:
            measures |= {f"{group}.{name}": float(item) for name, item in vars(view).items()}
    accuracies: defaultdict[str, list[float]] = defaultdict(list)
    for trial in trials:
        accuracies[f"accuracy.{trial.strategy}.{trial.fraction:g}"].append(trial.test_accuracy)
    record = json.dumps(to_jsonable(run), indent=2).encode()
    parts = [one.ingredient for one in run.learners if one.ingredient is not None]
    return Account(
        name=run.label,
        params=dict(_flat(to_jsonable(run.config))),
        tags=tags,
        measures=measures | {name: fmean(values) for name, values in accuracies.items()},
        curve=[
            Point(name, value, part.position)
            for part in sorted(parts, key=lambda part: part.position)
            for name, value in (
                ("soup.accuracy_after", part.soup_accuracy),
                ("soup.learner_accuracy", part.accuracy),
                ("soup.alpha", part.alpha),
            )
        ],
        files={"run.json": record, **files},
        subsets=subsets,
    )


def subset_name(subset: Subset) -> str:
    """Of a subset's folder or artifact: the strategy and the beginning of the digest."""
    return f"{subset.strategy}-{subset.digest[:12]}"


def subset_files(subset: Subset) -> dict[str, bytes]:
    """A subset's files in a tracker, by name."""
    manifest = json.dumps(to_jsonable(subset.manifest), indent=2)
    return {"subset.json": subset.to_json().encode(), "manifest.json": manifest.encode()}


def _flat(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def to_mlflow(account: Account, experiment: str) -> str:
    """Log an account to the server of MLflow's own settings (MLFLOW_TRACKING_URI).

    Returns:
        The run's id at MLflow.

    Raises:
        MissingExtraError: mlflow is not installed.
        ConfigError: MLflow refuses it.
    """
    tracking, entities = (
        import_extra(module, package="mlflow-skinny", extra="loggers", needed_for="MLflow")
        for module in ("mlflow.tracking", "mlflow.entities")
    )
    try:
        return _log_to_mlflow(tracking.MlflowClient(), entities, account, experiment)
    except Exception as error:
        raise ConfigError(
            f"MLflow does not take run {account.name}: {type(error).__name__}: {error}. Check "
            "MLFLOW_TRACKING_URI and its server."
        ) from error


def _log_to_mlflow(client: Any, entities: Any, account: Account, experiment: str) -> str:
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
    files = dict(account.files)
    for subset in account.subsets:
        for path, content in subset_files(subset).items():
            files[f"subsets/{subset_name(subset)}/{path}"] = content
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        client.log_artifacts(run_id, folder)
    client.set_terminated(run_id)
    return run_id


def to_wandb(account: Account, project: str) -> str:
    """Log an account by Weights & Biases' own settings (WANDB_MODE=offline: on disk).

    Returns and errors are as of `to_mlflow`.
    """
    wandb = import_extra("wandb", package="wandb", extra="loggers", needed_for="wandb")
    try:
        return _log_to_wandb(wandb, account, project)
    except Exception as error:
        raise ConfigError(
            f"wandb does not take run {account.name}: {type(error).__name__}: {error}. Check "
            "its settings (wandb login, WANDB_MODE)."
        ) from error


def _log_to_wandb(wandb: Any, account: Account, project: str) -> str:
    run = wandb.init(
        project=project,
        name=account.name,
        job_type="lipt",
        config=dict(account.params) | dict(account.tags),
    )
    steps: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for point in account.curve:
        steps[point.step][point.name] = point.value
    for step, values in sorted(steps.items()):
        run.log(values, step=step)
    run.summary.update(dict(account.measures))
    run.log_artifact(
        _artifact(wandb, f"run-{account.name}", "lipt-run", account.tags, account.files)
    )
    for subset in account.subsets:
        files = subset_files(subset)
        made = _artifact(wandb, subset_name(subset), "subset", subset.tags, files)
        run.log_artifact(made, aliases=[subset.digest[:12]])
    run.finish()
    return str(run.id)


def _artifact(wandb: Any, name: str, kind: str, tags: Any, files: Mapping[str, bytes]) -> Any:
    # Names take letters, digits, dots, dashes and underscores.
    plain = "".join(one if one.isalnum() or one in ".-_" else "-" for one in name)
    artifact = wandb.Artifact(plain, type=kind, metadata=dict(tags))
    for path, content in files.items():
        with artifact.new_file(path, mode="wb") as file:
            file.write(content)
    return artifact
