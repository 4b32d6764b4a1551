"""Settings of a distillation: how many images, in how many stages, and how they are matched."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Distillation(BaseModel):
    """What decides the synthetic images, besides data and model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    per_class: int = Field(ge=1)
    """Synthetic images of each class, all stages together."""
    stages: int = Field(default=1, ge=1)
    """Stages, each with its share of the images; 1 is ordinary gradient matching."""
    networks: int = Field(default=10, ge=1)
    """Networks that a stage's images are matched with, one after another, each with first weights
    of its own, and the same ones in every stage."""
    matches: int = Field(default=10, ge=1)
    """Matches with each network, each with other real images."""
    steps_between: int = Field(default=5, ge=0)
    """Steps that a network is trained on all images so far between two matches."""
    steps_before: int = Field(default=50, ge=0)
    """Steps that a network is trained on the images of each stage before, and those before it."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the networks."""
    image_learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the images, whose pixels are from 0 to 1: about how far Adam moves each."""
    real_batch: int = Field(default=64, ge=1)
    """Real images of each class in a match."""
    discard: float = Field(default=0.0, ge=0, lt=1)
    """Share of each class's real images that stages after the first leave out: those with the
    lowest losses after training on the images so far."""
    augmentation: Literal["crop_flip", "crop", "none"] = "crop_flip"
    """How real and synthetic images are augmented alike: shifted and perhaps mirrored, or only
    shifted."""
    padding: int = Field(default=4, ge=0)
    """Pixels that an augmented image is shifted by at most."""
    seed: int = Field(default=0, ge=0)
    """Seed of the first images, the networks, and all draws."""

    @model_validator(mode="after")
    def _stages_are_equal(self) -> Self:
        if self.per_class % self.stages:
            raise ValueError(
                f"{self.per_class} images per class do not go into {self.stages} equal stages. "
                "Give a multiple of the stages."
            )
        return self

    @property
    def per_stage(self) -> int:
        """Images of each class in a stage."""
        return self.per_class // self.stages
