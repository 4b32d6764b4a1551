"""Light context: labels and stored signals, for jobs that end in a moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor, nn

from lipt.common.blobs.kept import find_kept
from lipt.common.config.run_config import RunConfig
from lipt.common.data import Dataset
from lipt.common.data.sources.rows import Rows
from lipt.common.errors import StateError
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.messages import MAX_LIGHT_BYTES, HeavyJobError
from lipt.core.proxies.features import Backbone
from lipt.core.workspace import KeptT, Key


@dataclass(frozen=True)
class LightContext(Context):
    """Labels and stored signals only, so its process stays small; else a `HeavyJobError`."""

    known: DataDescription

    @cached_property
    def dataset(self) -> Dataset:
        known = self.known
        labels_N = torch.from_numpy(known.labels_N)
        rows = _LabelRows(known.source, known.class_names, labels_N)
        return _WithoutExamples(
            rows, known.fingerprint, known.inputs, quarantined=known.quarantined, excludes=True
        )

    def require_data(self, fingerprint: str) -> None:
        """Send other data to the heavy process, which can read it."""
        if fingerprint != self.known.fingerprint:
            _needs_heavy_queue()

    @cached_property
    def backbone(self) -> Backbone | None:
        return None if self.settings.backbone is None else _needs_heavy_queue()

    def new_model(self, config: RunConfig, seed: int | None = None) -> nn.Module:  # noqa: ARG002
        _needs_heavy_queue()

    def find(self, key: Key[KeptT]) -> KeptT:
        """The stored value, if it is small; nothing is computed here."""
        try:
            kept = find_kept(self.signals_dir, key.kind, key.depends_on, max_bytes=MAX_LIGHT_BYTES)
            return key.of.load(kept) if kept is not None else _needs_heavy_queue()
        except (OSError, StateError):  # just removed by the other process
            _needs_heavy_queue()


class _WithoutExamples(Dataset):
    def examples(self, ids: Tensor) -> NoReturn:  # noqa: ARG002 - there are none
        _needs_heavy_queue()

    def images(self, ids: Tensor) -> NoReturn:  # noqa: ARG002 - there are none
        _needs_heavy_queue()


class _LabelRows(Rows):
    def raw(self, row: int) -> NoReturn:  # noqa: ARG002 - there is none
        _needs_heavy_queue()


def _needs_heavy_queue() -> NoReturn:
    raise HeavyJobError
