"""Logger callbacks: TensorBoard, wandb and MLflow, each an `on_epoch` of `fit`.

    fit(..., on_epoch=[tensorboard("runs/grand")])

A logger's failure is a warning: training goes on. Each ends with the last step, or by `close`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.main_training.records import EpochRecord, OnEpoch
from lipt.trainer.subsets.subset import Subset


class LoggerWarning(UserWarning):
    """A logger did not take an epoch's record; training goes on."""


class Logger:
    """Logs every epoch, and ends with the last step; its failures are warnings.

    `tag` takes texts about the subset by name, in place of earlier ones, `keep` a file of it.
    """

    def __init__(
        self,
        name: str,
        log: OnEpoch,
        end: Callable[[], object],
        *,
        tag: Callable[[Mapping[str, str]], object],
        keep: Callable[[str, bytes], object],
    ) -> None:
        self._name = name
        self._log = log
        self._end: Callable[[], object] | None = end
        self._tag, self._keep = tag, keep
        self._digest = ""

    def describe(self, subset: Subset) -> None:
        """Log the first subset itself."""
        with self._outliving("did not take the subset"):
            self._digest = subset.digest
            self._tag(subset.tags)
            self._keep("subset.json", subset.to_json().encode())

    def __call__(self, record: EpochRecord) -> None:
        """Log an epoch."""
        with self._outliving(f"did not take epoch {record.epoch}"):
            self._log(record)
            if record.subset_digest != self._digest:  # chosen again
                self._digest = record.subset_digest
                self._tag({"lipt.subset_digest": self._digest})
            if record.step == record.num_steps:
                self.close()

    def close(self) -> None:
        """End the logger, once."""
        end, self._end = self._end, None
        if end is not None:
            with self._outliving("did not end"):
                end()

    @contextmanager
    def _outliving(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a server that is away must not end hours of work
            warnings.warn(
                f"{self._name} {what}: {type(error).__name__}: {error}. Training goes on.",
                LoggerWarning,
                stacklevel=4,
            )


def measures(record: EpochRecord) -> dict[str, float]:
    """The record's numbers, without absent ones, to plot over steps."""
    return {
        name: float(value)
        for name, value in asdict(record).items()
        if name != "step" and isinstance(value, int | float)
    }


def tensorboard(log_dir: str) -> Logger:
    """Write scalars for TensorBoard.

    Raises:
        MissingExtraError: the package is not installed; so in the other two.
        ConfigError: the logger cannot start; so in the other two.
    """
    import_extra("tensorboard", package="tensorboard", extra="loggers", needed_for="TensorBoard")
    module = import_extra(
        "torch.utils.tensorboard", package="tensorboard", extra="loggers", needed_for="TensorBoard"
    )
    writer = _opened("TensorBoard", lambda: module.SummaryWriter(log_dir))

    def write(record: EpochRecord) -> None:
        for name, value in measures(record).items():
            writer.add_scalar(name, value, record.step)
        writer.flush()

    def tag(tags: Mapping[str, str]) -> None:
        for tag_name, text in tags.items():
            writer.add_text(tag_name, text)

    def keep(path: str, content: bytes) -> None:
        writer.add_text(path, f"```json\n{content.decode()}\n```")

    return Logger("TensorBoard", write, writer.close, tag=tag, keep=keep)


def wandb(project: str, *, name: str | None = None) -> Logger:
    """Log to Weights & Biases, as one run that ends with the last step."""
    module = import_extra("wandb", package="wandb", extra="loggers", needed_for="wandb")
    run = _opened("wandb", lambda: module.init(project=project, name=name))

    def keep(path: str, content: bytes) -> None:
        tags = dict(run.config)
        name = f"subset-{tags['lipt.subset_digest'][:12]}"
        artifact = module.Artifact(name, type="subset", metadata=tags)
        with artifact.new_file(path, mode="wb") as file:
            file.write(content)
        run.log_artifact(artifact)

    return Logger(
        "wandb",
        lambda record: run.log(measures(record), step=record.step),
        run.finish,
        tag=lambda tags: run.config.update(dict(tags), allow_val_change=True),
        keep=keep,
    )


def mlflow(experiment: str, *, name: str | None = None) -> Logger:
    """Log to the MLflow server that its own settings name, as one run."""
    module = import_extra("mlflow", package="mlflow-skinny", extra="loggers", needed_for="MLflow")

    def start() -> Any:
        module.set_experiment(experiment)
        return module.start_run(run_name=name)

    run_id = _opened("MLflow", start).info.run_id
    return Logger(
        "MLflow",
        lambda record: module.log_metrics(measures(record), step=record.step, run_id=run_id),
        module.end_run,
        tag=module.set_tags,
        keep=lambda path, content: module.log_text(content.decode(), path, run_id=run_id),
    )


def _opened(logger: str, start: Callable[[], Any]) -> Any:
    try:
        return start()
    except Exception as error:
        raise ConfigError(
            f"{logger} cannot be logged to: {type(error).__name__}: {error}. Mend its settings, "
            "or train without it; the log in JSON is always written."
        ) from error
