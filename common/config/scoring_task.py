"""Scoring task: which examples to pass through a model; the wire's `ScoringTask` has its fields.

Whoever passes the same examples through the same weights in the same batches, with as many
threads on the same kind of device, comes to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lipt.common.config.model_task import ModelTask
from lipt.common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ScoringTask(ModelTask):
    """Of which examples errors and features are wanted, and how they are computed.

    fingerprint: of the data set whose ids they have.
    start: the first example's place among those that are used.
    stop: the place behind the last one's.
    batch_size: examples of a batch, from the first one on.
    threads: of the CPU.
    half_errors: errors are float16, else float32.
    half_features: features likewise.
    quarantined: ids that are left out, ascending: examples are counted without them.
    seed: of what the model draws when it is built and its weights do not have.
    """

    fingerprint: Annotated[str, Field(min_length=1, max_length=100)]
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    half_errors: bool = False
    half_features: bool = False
    quarantined: Annotated[tuple[int, ...], Field(max_length=10_000)] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a task of no examples.

        Raises:
            ConfigError: it ends before it begins; or as of every task.
        """
        super().__post_init__()
        if self.stop <= self.start:
            raise ConfigError(
                f"the task is of the examples {self.start} to {self.stop}, which are none. Use "
                "the lipt of the coordinator."
            )

    def __len__(self) -> int:
        """How many examples it is of."""
        return self.stop - self.start
