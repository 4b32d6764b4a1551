"""Ingredient: what the soup made of one learner."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Ingredient(BaseModel):
    """A learner's part in the soup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Place in the soup's order, from 0.
    position: int
    # Alone, on the validation split.
    accuracy: float
    # Of the soup after it was offered.
    soup_accuracy: float
    # (1 - alpha) soup + alpha ingredient; 0 where it was discarded.
    alpha: float
    kept: bool
