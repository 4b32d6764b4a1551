"""Weights & Biases: an account as one run, with each subset as an artifact of its own."""

from __future__ import annotations

from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.trainer.tracking.account import Account

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
        return _log(wandb, account, project)
    except Exception as error:
        raise ConfigError(
            f"wandb does not take run {account.name}: {type(error).__name__}: {error}. See to "
            "its settings (wandb login, WANDB_MODE)."
        ) from error


def _log(wandb: Any, account: Account, project: str) -> str:
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
