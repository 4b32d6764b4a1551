"""What one learner needs to know, besides its bytes: the frozen form of the wire's task."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.run_config import AugmentationConfig, LearnersConfig, PruningMethod


@dataclass(frozen=True)
class ImageFormat:
    """What a model sees: C x H x W, scaled to [0, 1], then normalized per channel."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width


@dataclass(frozen=True)
class LearnerTask:
    """How to train one learner on its shard."""

    model: str
    num_classes: int
    image: ImageFormat
    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: float
    seed: int
