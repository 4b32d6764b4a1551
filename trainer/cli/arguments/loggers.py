"""Loggers of `lipt train`: their flags, and their packages, looked for before anything starts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lipt.trainer.main_training.records import OnEpoch
    from lipt.trainer.subsets.subset import Subset

# What installs them; they are imported by the names of their flags.
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


@dataclass(frozen=True)
class Loggers:
    """Where else training's measures go."""

    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Log to TensorBoard, too.")
    ] = None
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Log to Weights & Biases, too.")
    ] = None
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Log to MLflow, too.")
    ] = None

    def require(self) -> None:
        """Look for the packages of those that were asked for; imports none of them.

        Raises:
            MissingExtraError: one is not installed.
        """
        from lipt.common.imports import require_extra

        for name in self._asked():
            require_extra(name, package=_PACKAGES[name], extra="loggers", needed_for=f"--{name}")

    def started(self, stack: ExitStack, subset: Subset | None) -> list[OnEpoch]:
        """Those that were asked for; each ends with the last step, or with `stack`.

        Args:
            stack: of the training.
            subset: what is trained on, where that is known beforehand; they are told of it.

        Raises:
            MissingExtraError: a package lacks something itself.
            ConfigError: one does not begin.
        """
        from lipt.trainer.main_training import callbacks

        loggers: list[OnEpoch] = []
        for name, value in self._asked().items():
            logger = getattr(callbacks, name)(value)
            stack.callback(logger.close)
            if subset is not None:
                logger.describe(subset)
            loggers.append(logger)
        return loggers

    def _asked(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if value is not None}
