"""Contexts of jobs: the data, blobs and caches that they read, in the heavy and the light queue."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import (
    cache_file,
    cached_files,
    find_cached,
    make_directory,
    remove_oldest,
    write_durably,
)
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import DataError, LiptError, OtherDataError, StateError
from lipt.common.process.devices import resolve_device
from lipt.common.text import listed
from lipt.coordinator.compute.messages import MAX_LIGHT_BYTES, HeavyJobError, News, Progressed
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.kept_values import KeptT, Key
from lipt.core.proxies.features import Backbone, load_backbone
from lipt.core.workspace import Workspace
from lipt.data.dataset import Dataset, without_quarantined
from lipt.data.held_out import DataForm
from lipt.data.inputs.specs import InputSpec
from lipt.data.loading import open_dataset
from lipt.data.sources.rows import Rows
from lipt.data.targets.values import OtherTarget, SingleLabel, Target

logger = logging.getLogger(__name__)

# Cached files of each kind. Strategies need several kinds for the same weights: with one limit for
# all files, strategies tried in turn would evict each other's.
_MOST_FILES = 4
# Each model of a warm-up has weights, signals and gradient norms; the rest is for other queries.
_FILES_PER_MODEL, _MORE_FILES = 3, 9
_MOST_NAMED = 20
_IDS = TypeAdapter(tuple[int, ...])

Report = Callable[[News], None]


@dataclass(frozen=True)
class DataDescription:
    """The data set's figures and labels, without its inputs.

    `labels` are little-endian int32 of all ids, also excluded ones. With `other_target`, classes
    are strata. facts: for manifests, as JSON.
    """

    source: str
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    inputs: InputSpec
    fingerprint: str
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    labels: bytes = field(default=b"", repr=False, compare=False)
    quarantined: tuple[int, ...] = ()
    other_target: OtherTarget | None = None
    target_names: tuple[str, ...] = ()
    source_names: tuple[str, ...] = ()
    source_counts: tuple[int, ...] = ()
    number_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()
    flagged: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        targets, form = dataset.rows.targets, DataForm.of(dataset)
        counts_C = torch.bincount(dataset.labels_N, minlength=len(dataset.class_names))
        labels_N: np.ndarray = dataset.rows.labels_N.numpy()
        return cls(
            source=dataset.source,
            class_names=dataset.class_names,
            class_counts=tuple(counts_C.tolist()),
            inputs=dataset.inputs,
            fingerprint=dataset.fingerprint,
            note=dataset.note,
            facts=dataset.facts,
            labels=labels_N.astype("<i4").tobytes(),
            quarantined=dataset.quarantined,
            other_target=None if targets is None else targets.target,
            target_names=() if targets is None else targets.names,
            source_names=tuple(dataset.source_ids),
            source_counts=tuple(map(len, dataset.source_ids.values())),
            number_columns=form.numbers,
            category_columns=form.categories,
            flagged=form.flagged,
        )

    @property
    def target(self) -> Target:
        return self.other_target or SingleLabel(len(self.class_names))

    @property
    def num_examples(self) -> int:
        """N: the usable examples."""
        return sum(self.class_counts)

    @property
    def num_rows(self) -> int:
        """All examples of the source; ids are below this."""
        return self.num_examples + len(self.quarantined)

    @property
    def labels_N(self) -> NDArray[np.int64]:
        return np.frombuffer(self.labels, "<i4").astype(np.int64)


def with_kept_quarantine(dataset: Dataset, folder: Path) -> Dataset:
    """The data set without what its first opening here excluded; a DataError on new damage."""
    path = folder / f"{dataset.fingerprint}.json"
    try:
        kept = _IDS.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        try:
            make_directory(path.parent)
            write_durably(path, json.dumps(dataset.quarantined).encode())
        except OSError as error:
            if dataset.quarantined:
                raise StateError(
                    f"the excluded images of {dataset.source} cannot be stored in {path}: {error}. "
                    "Make room, and start again."
                ) from error
            # A full disk does not prevent serving the readable data.
            logger.warning("%s is not written: %s", path, error)
        return dataset
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path} lists the excluded images of {dataset.source} and cannot be used. Restore it "
            "from a backup of the state directory."
        ) from error
    if broken := sorted(set(dataset.quarantined) - set(kept)):
        raise DataError(
            f"{len(broken)} images of {dataset.source} cannot be used that could when runs of this "
            f"state directory were made: {listed(broken, _MOST_NAMED)}. Restore them, or take "
            "another state directory."
        )
    return replace(dataset, quarantined=kept)


@dataclass(frozen=True)
class Context(Workspace):
    """Inputs and caches that jobs share: opened on first use, reopened if data files change."""

    settings: CoordinatorSettings
    send: Report

    @cached_property
    def dataset(self) -> Dataset:
        settings = self.settings
        opened = open_dataset(
            settings.dataset.source,
            image_size=settings.dataset.image_size,
            allowed_modules=settings.allow_modules,
            progress=self.progress(f"reading {settings.dataset.source}"),
            max_corrupt=settings.dataset.max_corrupt,
        )
        return without_quarantined(with_kept_quarantine(opened, settings.state_dir / "quarantine"))

    def require_data(self, fingerprint: str) -> None:
        """Refuse data whose current fingerprint differs (OtherDataError)."""
        source = self.settings.dataset.source
        opened = vars(self).get("dataset")
        if opened is not None and opened.has_changed():
            logger.warning("files of %s have changed: it is opened again", source)
            del vars(self)["dataset"]
        remedy = "Put the run's own data back; for other data start a coordinator anew, and a run."
        try:
            current = self.dataset.fingerprint
        except LiptError as error:
            raise OtherDataError(
                f"{source}, which had the fingerprint {fingerprint}, cannot be read any more: "
                f"{error.problem}. {remedy}"
            ) from error
        if current != fingerprint:
            raise OtherDataError(
                f"{source} has the fingerprint {current} now, and {fingerprint} is needed. {remedy}"
            )

    def find(self, key: Key[KeptT]) -> KeptT | None:
        kept = find_cached(self._folder(key.models), key.kind, key.depends_on)
        return None if kept is None else key.of.load(kept)

    def keep(self, key: Key[KeptT], value: KeptT) -> KeptT:
        """Cache a value, unless the data has changed since it was opened."""
        if self.dataset.has_changed():
            return value
        most_files = _FILES_PER_MODEL * key.models + _MORE_FILES if key.models else _MOST_FILES
        folder = self._folder(key.models)
        path = cache_file(folder, key.kind, key.depends_on, value.save)
        remove_oldest(cached_files(folder, key.kind), most_files)
        # Memory-mapped from now on, so that the computed value can be freed.
        return value if path is None else type(value).load(path)

    def _folder(self, models: int) -> Path:
        return self.signals_dir / "warm-ups" if models else self.signals_dir

    @cached_property
    def device(self) -> torch.device:
        return resolve_device(self.settings.device)

    @cached_property
    def blobs(self) -> BlobStore:
        settings = self.settings
        return BlobStore(settings.state_dir, max_blob_bytes=settings.limits.max_blob_bytes)

    @cached_property
    def backbone(self) -> Backbone | None:
        spec = self.settings.backbone
        return None if spec is None else load_backbone(spec, self.device)

    @property
    def has_backbone(self) -> bool:
        """Whether a backbone is configured, without opening it."""
        return self.settings.backbone is not None

    @cached_property
    def allowed_modules(self) -> tuple[str, ...]:
        return self.settings.allow_modules

    @cached_property
    def scratch(self) -> Path | None:
        return self.signals_dir

    @property
    def signals_dir(self) -> Path:
        return self.settings.state_dir / "signals"

    def report(self, activity: str, done: int, total: int) -> None:
        self.send(Progressed(activity, done, total))

    def read(self, name: BlobName) -> Path:
        """The path of a blob, after a check of its digest."""
        return self.blobs.verified_path(name)


@dataclass(frozen=True)
class LightContext(Context):
    """Labels and stored signals only, so its process stays small; else a `HeavyJobError`."""

    known: DataDescription

    @cached_property
    def dataset(self) -> Dataset:
        known = self.known
        labels_N = torch.from_numpy(known.labels_N)
        rows = _LabelRows(known.source, known.class_names, labels_N)
        return Dataset(
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
            kept = find_cached(
                self.signals_dir, key.kind, key.depends_on, max_bytes=MAX_LIGHT_BYTES
            )
            return key.of.load(kept) if kept is not None else _needs_heavy_queue()
        except (OSError, StateError):  # just removed by the other process
            _needs_heavy_queue()


class _LabelRows(Rows):
    def raw(self, row: int) -> NoReturn:  # noqa: ARG002 - there is none
        _needs_heavy_queue()

    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> NoReturn:  # noqa: ARG002
        _needs_heavy_queue()


def _needs_heavy_queue() -> NoReturn:
    raise HeavyJobError
