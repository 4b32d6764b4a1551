"""Diagnosis job: every finding by the signals of a proxy, with or without a run, in one file."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.blobs.blob import BlobName
from lipt.common.process.devices import device_name
from lipt.coordinator.compute.context import Context
from lipt.core.stages.diagnosis import diagnose
from lipt.core.stages.proxy_features import ProxyQuestion


@dataclass(frozen=True)
class Diagnosed:
    """A stored diagnosis."""

    blob: BlobName
    device: str


@dataclass(frozen=True)
class DiagnoseData:
    """Diagnose the data by the signals of a proxy."""

    question: ProxyQuestion

    def run(self, context: Context) -> Diagnosed:
        """Compute all findings and store them."""
        diagnosis = diagnose(context, self.question)
        return Diagnosed(context.blobs.put_bytes(diagnosis.pack()), device_name(context.device))
