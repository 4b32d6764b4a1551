"""Records of main training for the loggers that people have: each is an `on_epoch`.

    fit(..., on_epoch=[tensorboard("runs/grand")])

Their packages are imported when a callback is made, and are not dependencies.
"""

from __future__ import annotations

from dataclasses import asdict

from lipt.common.extras import import_extra
from lipt.trainer.main_training.records import EpochRecord, OnEpoch

_AXIS = "step"


def measures(record: EpochRecord) -> dict[str, float]:
    """What a logger plots over steps: those of the record's numbers that are there."""
    return {
        name: float(value)
        for name, value in asdict(record).items()
        if name != _AXIS and isinstance(value, int | float)
    }


def tensorboard(log_dir: str) -> OnEpoch:
    """Write scalars for TensorBoard.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    import_extra("tensorboard", package="tensorboard", extra="loggers", needed_for="TensorBoard")
    # torch's own writer needs the package that was just found.
    module = import_extra(
        "torch.utils.tensorboard", package="tensorboard", extra="loggers", needed_for="TensorBoard"
    )
    writer = module.SummaryWriter(log_dir)

    def write(record: EpochRecord) -> None:
        for name, value in measures(record).items():
            writer.add_scalar(name, value, record.step)
        writer.flush()

    return write


def wandb(project: str, *, name: str | None = None) -> OnEpoch:
    """Log to Weights & Biases, as one run that ends with the last step.

    Raises:
        MissingExtraError: wandb is not installed.
    """
    module = import_extra("wandb", package="wandb", extra="loggers", needed_for="wandb")
    run = module.init(project=project, name=name)

    def log(record: EpochRecord) -> None:
        run.log(measures(record), step=record.step)
        if record.step == record.num_steps:
            run.finish()

    return log


def mlflow(experiment: str, *, name: str | None = None) -> OnEpoch:
    """Log to the MLflow server that its own settings name, as one run.

    Raises:
        MissingExtraError: mlflow is not installed.
    """
    module = import_extra("mlflow", package="mlflow-skinny", extra="loggers", needed_for="MLflow")
    module.set_experiment(experiment)
    run_id = module.start_run(run_name=name).info.run_id

    def log(record: EpochRecord) -> None:
        module.log_metrics(measures(record), step=record.step, run_id=run_id)
        if record.step == record.num_steps:
            module.end_run()

    return log
