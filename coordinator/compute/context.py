"""Context: the blobs and files of the state directory that jobs read and cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from pydantic import TypeAdapter

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import make_directory, write_durably
from lipt.common.blobs.kept import files_of, find_kept, forget_oldest, keep
from lipt.common.blobs.store import BlobStore
from lipt.common.data import Dataset, open_dataset, without_quarantined
from lipt.common.errors import DataError, LiptError, OtherDataError, StateError
from lipt.common.process.devices import resolve_device
from lipt.coordinator.compute.messages import News, Progressed
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.proxies.features import Backbone, load_backbone
from lipt.core.signals.stored import UserFeatures, read_user_features
from lipt.core.workspace import KeptT, Key, Workspace

logger = logging.getLogger(__name__)

# Cached files of each kind. Strategies need several kinds for the same weights: with one limit for
# all files, strategies tried in turn would evict each other's.
_MOST_FILES = 4
# Each model of a warm-up has weights, signals and gradient norms; the rest is for other queries.
_FILES_PER_MODEL, _MORE_FILES = 3, 9
_MOST_NAMED = 20
_IDS = TypeAdapter(tuple[int, ...])

Report = Callable[[News], None]


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
        named = ", ".join(map(str, broken[:_MOST_NAMED]))
        raise DataError(
            f"{len(broken)} images of {dataset.source} cannot be used that could when runs of this "
            f"state directory were made: {named}. Restore them, or take another state directory."
        )
    return replace(dataset, quarantined=kept)


@dataclass(frozen=True)
class Context(Workspace):
    """Inputs and caches of jobs: opened on first use, shared, reopened if data files change."""

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
            found = self.dataset.fingerprint
        except LiptError as error:
            raise OtherDataError(
                f"{source}, which had the fingerprint {fingerprint}, cannot be read any more: "
                f"{error.problem}. {remedy}"
            ) from error
        if found != fingerprint:
            raise OtherDataError(
                f"{source} has the fingerprint {found} now, and {fingerprint} is needed. {remedy}"
            )

    def find(self, key: Key[KeptT]) -> KeptT | None:
        kept = find_kept(self._folder(key.models), key.kind, key.depends_on)
        return None if kept is None else key.of.load(kept)

    def keep(self, key: Key[KeptT], value: KeptT) -> KeptT:
        """Cache a value, unless the data has changed since it was opened."""
        if self.dataset.has_changed():
            return value
        most_files = _FILES_PER_MODEL * key.models + _MORE_FILES if key.models else _MOST_FILES
        folder = self._folder(key.models)
        path = keep(folder, key.kind, key.depends_on, value.save)
        forget_oldest(files_of(folder, key.kind), most_files)
        # Memory-mapped from now on, so that the computed value can be freed.
        return value if path is None else type(value).load(path)

    def _folder(self, models: int) -> Path:
        return self.warm_ups_dir if models else self.signals_dir

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
        return tuple(self.settings.allow_modules)

    @cached_property
    def scratch(self) -> Path | None:
        return self.signals_dir

    @property
    def signals_dir(self) -> Path:
        return self.settings.state_dir / "signals"

    @property
    def warm_ups_dir(self) -> Path:
        return self.signals_dir / "warm-ups"

    def report(self, activity: str, done: int, total: int) -> None:
        self.send(Progressed(activity, done, total))

    def user_features(self, features: BlobName) -> UserFeatures:
        numbering = self.dataset.numbering
        read = read_user_features(
            self.blobs.verified_path(features),
            num_examples=self.dataset.num_ids,
            max_bytes=self.settings.limits.max_blob_bytes,
        )
        paired_NP = read.paired_features_NP
        return UserFeatures(
            numbering.kept(read.features_ND),
            None if paired_NP is None else numbering.kept(paired_NP),
        )

    def read(self, name: BlobName) -> Path:
        """The path of a blob, after a check of its digest."""
        return self.blobs.verified_path(name)
