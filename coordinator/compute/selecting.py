"""Selection as a job: signals of some weights (computed once, kept on disk), then a strategy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lipt.common.blobs.name import BlobName
from lipt.common.determinism import pinned_kernels
from lipt.common.devices import device_name
from lipt.common.learner_task import ImageFormat
from lipt.common.run_config import RunConfig
from lipt.common.seeding import derive_seed
from lipt.coordinator.compute.context import Context
from lipt.coordinator.gradient_norms import full_gradient_norms
from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategy import Need
from lipt.coordinator.signals import Signals, compute_signals, labels_only

# The newest ones stay: a user tries several strategies on the same weights.
_MAX_CACHED = 4


@dataclass(frozen=True)
class Selected:
    """A subset's bytes, stored: indices as little-endian int64, ascending, then float32 weights."""

    blob: BlobName
    device: str


@dataclass(frozen=True)
class SelectSubset:
    """Choose `budget` examples by a strategy on given weights."""

    config: RunConfig
    image: ImageFormat
    weights: BlobName
    strategy: str
    budget: int
    balanced: bool
    options: tuple[tuple[str, str], ...]

    def run(self, context: Context) -> Selected:
        """Compute, select and store."""
        strategy = find_strategy(self.strategy)
        options = strategy.parse_options(dict(self.options))
        signals = self._signals(context, set(strategy.needs(options)))
        context.report(f"selecting by {self.strategy}", 0, 1)
        chosen = select(
            strategy,
            signals,
            self.budget,
            balanced=self.balanced,
            seed=derive_seed(self.config.seed, "selection"),
            options=options,
        )
        indices_K: np.ndarray = chosen.indices_K.numpy().astype("<i8")
        weights_K: np.ndarray = chosen.weights_K.numpy().astype("<f4")
        blob = context.blobs.put_bytes(indices_K.tobytes() + weights_K.tobytes())
        return Selected(blob, device_name(context.device))

    def _signals(self, context: Context, needs: set[Need]) -> Signals:
        signals = labels_only(context.dataset.labels_N)
        if Need.SIGNALS in needs:
            signals = self._cached(context, "signals", self._compute_signals)
        if Need.GRADIENT_NORMS in needs:
            norms = self._cached(context, "gradients", self._compute_norms)
            signals = replace(signals, gradient_norms_N=norms.gradient_norms_N)
        return signals

    def _cached(
        self, context: Context, kind: str, compute: Callable[[Context], Signals]
    ) -> Signals:
        folder = context.signals_dir
        path = folder / f"{kind}-{self._signals_key(context)}.safetensors"
        if path.is_file():
            os.utime(path)
            return Signals.load(path)
        signals = compute(context)
        folder.mkdir(exist_ok=True)
        temporary = path.with_suffix(".tmp")
        signals.save(temporary)
        temporary.replace(path)
        _forget_oldest(folder)
        return signals

    def _signals_key(self, context: Context) -> str:
        """Everything that the signals depend on, and nothing else."""
        depends_on = (
            self.weights.sha256,
            context.dataset.fingerprint,
            self.config.model,
            self.image,
            self.config.evaluation_threads,
            str(context.device),
        )
        return hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]

    def _compute_signals(self, context: Context) -> Signals:
        with pinned_kernels(self.config.evaluation_threads):
            return compute_signals(
                context.loaded_model(self.config, self.weights),
                context.dataset,
                self.image,
                device=context.device,
                on_progress=context.progress("computing signals"),
                batch_size=context.batch_size,
            )

    def _compute_norms(self, context: Context) -> Signals:
        labels = labels_only(context.dataset.labels_N)
        norms_N = full_gradient_norms(
            context.loaded_model(self.config, self.weights),
            context.dataset,
            self.image,
            device=context.device,
            on_progress=context.progress("computing per-example gradients"),
            cpu_threads=self.config.evaluation_threads,
        )
        return replace(labels, gradient_norms_N=norms_N)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_CACHED]:
        path.unlink()
