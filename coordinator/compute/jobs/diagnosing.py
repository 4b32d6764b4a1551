"""Diagnosis job: signals of a proxy, then every finding, into one file.

Needs no run: without one there are no learners and no soup, and the proxy goes without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.blobs.blob import BlobName
from lipt.common.process.devices import device_name
from lipt.coordinator.compute.context import Context
from lipt.core.stages.diagnosis import diagnose
from lipt.core.stages.proxy_features import ProxyQuestion


@dataclass(frozen=True)
class Diagnosed:
    """A diagnosis, stored: the safetensors file of `lipt.core.diagnosis.diagnosis`."""

    blob: BlobName
    device: str


@dataclass(frozen=True)
class DiagnoseData:
    """Look through the data by the signals of a proxy."""

    question: ProxyQuestion

    def run(self, context: Context) -> Diagnosed:
        """Compute all findings and store them.

        Raises:
            ProxyError: the proxy is a head that learned from what it would judge, or needs
                what is not there.
        """
        diagnosis = diagnose(context, self.question)
        return Diagnosed(context.blobs.put_bytes(diagnosis.pack()), device_name(context.device))
