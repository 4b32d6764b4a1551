"""Configuration: every setting of coordinator, runs, workers, pools, training and distillation."""

from __future__ import annotations

from lipt.common.config.knobs import markdown_tables
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer import Recipe
from lipt.trainer.distillation import Distillation
from lipt.worker.settings import PoolSettings, WorkerSettings

_PARTS = (
    ("The coordinator and its runs", CoordinatorSettings),
    ("Workers", WorkerSettings),
    ("Worker pools", PoolSettings),
    ("Main training", Recipe),
    ("Distillation", Distillation),
)


def configuration() -> str:
    """All settings as Markdown."""
    return "\n".join(
        f"## {heading}\n\n{markdown_tables(model, level=3)}" for heading, model in _PARTS
    )
