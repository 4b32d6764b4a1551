"""Tracking: logs runs, subsets and trainings, with references to each other, to a tracker.

    fit(..., on_epoch=[Logger("tensorboard", "runs/grand")])

`lipt track` logs a run with its subsets once; a `Logger` logs every epoch of main training.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.formatting import to_jsonable

if TYPE_CHECKING:  # without torch, so that a missing package is named at once
    from lipt.trainer.main_training.records import EpochRecord
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.views import RunView

# Tags of a run's subsets, and of a training's current subset.
DIGESTS, DIGEST = "lipt.subset_digests", "lipt.subset_digest"

# MLflow's limits per call and per value.
_MAX_PARAMS, _MAX_CHARACTERS = 100, 500


_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


class LoggerWarning(UserWarning):
    """A logger failed to log an epoch; training continues."""


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, log_dir: str) -> None:
        require_trackers(["tensorboard"])
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - of an extra

        with _config_errors(self.name):
            self._writer: Any = SummaryWriter(log_dir)
        self.end = self._writer.close

    def tag(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._writer.add_text(name, text)

    def measure(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def keep(self, subset: Subset, path: str) -> None:
        self._writer.add_text(path, f"```json\n{subset.to_json()}\n```")


class _Mlflow:
    name = "MLflow"

    def __init__(self, experiment: str, run_name: str | None = None) -> None:
        module = _import("mlflow")
        self._entities = module.entities

        with _config_errors(self.name):
            self._client: Any = module.MlflowClient()
            existing = self._client.get_experiment_by_name(experiment)
            number = (
                existing.experiment_id if existing else self._client.create_experiment(experiment)
            )
            self.run_id = str(self._client.create_run(number, run_name=run_name).info.run_id)

    def tag(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._client.set_tag(self.run_id, name, text)

    def measure(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(*item, now, step) for item in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def keep(self, subset: Subset, path: str) -> None:
        self._client.log_text(self.run_id, subset.to_json(), path)

    def describe(self, params: Mapping[str, str], files: Mapping[str, str]) -> None:
        made = [self._entities.Param(name, text[:_MAX_CHARACTERS]) for name, text in params.items()]
        for first in range(0, len(made), _MAX_PARAMS):
            self._client.log_batch(self.run_id, params=made[first : first + _MAX_PARAMS])
        for path, text in files.items():
            self._client.log_text(self.run_id, text, path)

    def end(self) -> None:
        self._client.set_terminated(self.run_id)


class _Wandb:
    name = "wandb"

    def __init__(self, project: str, run_name: str | None = None) -> None:
        self._module = _import("wandb")
        with _config_errors(self.name):
            self._run: Any = self._module.init(project=project, name=run_name)
        self.run_id, self.end = str(self._run.id), self._run.finish

    def tag(self, texts: Mapping[str, str]) -> None:
        self._run.config.update(dict(texts), allow_val_change=True)

    def measure(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def keep(self, subset: Subset, path: str) -> None:  # noqa: ARG002 - an artifact's name is enough
        self._artifact(_name(subset), "subset", subset.tags, {"subset.json": subset.to_json()})

    def describe(self, params: Mapping[str, str], files: Mapping[str, str]) -> None:
        self.tag(params)
        self._artifact(f"run-{self._run.name}", "lipt-run", {}, files)

    def _artifact(
        self, name: str, kind: str, tags: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        # Names allow letters, digits, dots, dashes and underscores.
        plain = "".join(
            character if character.isalnum() or character in ".-_" else "-" for character in name
        )
        artifact = self._module.Artifact(plain, type=kind, metadata=dict(tags))
        for path, text in files.items():
            with artifact.new_file(path, mode="w", encoding="utf-8") as file:
                file.write(text)
        self._run.log_artifact(artifact)


def _name(subset: Subset) -> str:
    return f"{subset.strategy}-{subset.digest[:12]}"


def require_trackers(names: Iterable[str]) -> None:
    """Import the trackers' packages; MissingExtraError for one that is not installed."""
    for name in names:
        _import(name)


def _import(name: str) -> Any:
    return import_extra(name, package=_PACKAGES[name], extra="loggers", needed_for=name)


@contextmanager
def _config_errors(tracker: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{tracker} cannot be logged to: {type(error).__name__}: {error}. Check its settings "
            "and its server."
        ) from error


def track(
    tracker: str,
    target: str,
    run: RunView,
    subsets: Sequence[Subset],
    *,
    files: Mapping[str, str],
) -> str:
    """Log a ready run: settings, costs, soup, subsets and files.

    `tracker` is "mlflow" or "wandb", with its own settings (MLFLOW_TRACKING_URI, WANDB_MODE).
    `target` is its experiment or project; `files` are texts by name. Returns the tracker's run id.

    Raises:
        MissingExtraError: the tracker's package is not installed.
        ConfigError: the tracker refuses the run.
    """
    opened = (_Mlflow if tracker == "mlflow" else _Wandb)(target, run.label)
    with _config_errors(opened.name):
        opened.tag(run_tags(run, subsets))
        record = json.dumps(to_jsonable(run), indent=2)
        opened.describe(dict(_flat(to_jsonable(run.config))), {"run.json": record, **files})
        parts = [learner.ingredient for learner in run.learners if learner.ingredient is not None]
        for part in sorted(parts, key=lambda part: part.position):
            accuracies = {"accuracy_after": part.soup_accuracy, "learner_accuracy": part.accuracy}
            values = {**accuracies, "alpha": part.alpha}
            opened.measure({f"soup.{name}": value for name, value in values.items()}, part.position)
        opened.measure(run_measures(run), len(parts))
        for subset in subsets:
            opened.keep(subset, f"subsets/{_name(subset)}/subset.json")
        opened.end()
    return opened.run_id


def run_tags(run: RunView, subsets: Iterable[Subset]) -> dict[str, str]:
    tags = {"lipt.run_id": run.run_id, "lipt.fingerprint": run.fingerprint}
    if run.pretrained_weights is not None:
        tags["lipt.theta_p_sha256"] = run.pretrained_weights.sha256
    if digests := ",".join(subset.digest for subset in subsets):
        tags[DIGESTS] = digests
    return tags


def run_measures(run: RunView) -> dict[str, float]:
    return {
        f"{group}.{name}": float(value)
        for group, view in (("soup", run.soup), ("costs", run.costs))
        if view is not None
        for name, value in vars(view).items()
    }


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


_TRACKERS = {"tensorboard": _TensorBoard, "mlflow": _Mlflow, "wandb": _Wandb}


class Logger:
    """An `on_epoch` of `fit`; it ends after the last step, or by `close`.

    A tracker's failure is a warning, and training continues.

    Args:
        tracker: "tensorboard", "mlflow" or "wandb".
        target: TensorBoard's folder, MLflow's experiment, or wandb's project.
        subset: the first subset, if it is known.

    Raises:
        MissingExtraError: the tracker's package is not installed.
        ConfigError: the tracker cannot be started.
    """

    def __init__(self, tracker: str, target: str, subset: Subset | None = None) -> None:
        self._tracker = _TRACKERS[tracker](target)
        self._digest = ""
        self._ended = False
        if subset is not None:
            with self._failures_as_warnings("did not take the subset"):
                self._digest = subset.digest
                self._tracker.tag(subset.tags)
                self._tracker.keep(subset, "subset.json")

    def __call__(self, record: EpochRecord) -> None:
        """Log an epoch's numbers by step, except missing ones."""
        values = {
            name: float(value)
            for name, value in asdict(record).items()
            if name != "step" and isinstance(value, int | float)
        }
        with self._failures_as_warnings(f"did not take epoch {record.epoch}"):
            self._tracker.measure(values, record.step)
            if record.subset_digest != self._digest:  # re-selected
                self._digest = record.subset_digest
                self._tracker.tag({DIGEST: self._digest})
        if record.step == record.num_steps:
            self.close()

    def close(self) -> None:
        """End the logger; later calls have no effect."""
        if not self._ended:
            self._ended = True
            with self._failures_as_warnings("did not end"):
                self._tracker.end()

    @contextmanager
    def _failures_as_warnings(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a server that is away must not end hours of work
            warnings.warn(
                f"{self._tracker.name} {what}: {type(error).__name__}: {error}. Training goes on.",
                LoggerWarning,
                stacklevel=4,
            )
