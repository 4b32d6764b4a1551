"""Context: what jobs read and keep, on blobs and files of the state directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import make_directory, publish, temporary_file, write_all
from lipt.common.blobs.store import BlobStore
from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.data import Bearable, Dataset, open_dataset, without_quarantined
from lipt.common.errors import DataError, LiptError, OtherDataError, StateError
from lipt.common.process.devices import resolve_device
from lipt.coordinator.compute.cache import MOST_FILES, find_cached, keep
from lipt.coordinator.compute.progress import Made, Progressed
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.proxies.features import Backbone, load_backbone
from lipt.core.signals.stored import UserFeatures, load_tensors, read_user_features, save_tensors
from lipt.core.training import Warmed
from lipt.core.workspace import SaveableT, Workspace

# Tensors of a warm-up file: `weights/NAME` and, before the end, `momentum/NAME`. The metadata has
# `step` and `seconds`.
_WEIGHTS, _MOMENTUM = "weights/", "momentum/"


@dataclass(frozen=True)
class WarmUpFile:
    """A warm-up that writes itself to a safetensors file."""

    warmed: Warmed

    def save(self, path: Path) -> None:
        """Write the file; readers see all of it or nothing."""
        warmed = self.warmed
        tensors = {_WEIGHTS + name: value for name, value in warmed.weights.items()}
        tensors |= {_MOMENTUM + name: value for name, value in warmed.momentum.items()}
        facts = {"step": str(warmed.step), "seconds": repr(warmed.seconds)}
        save_tensors(path, tensors, facts)


def read_warm_up(path: Path) -> Warmed:
    """The warm-up of a `WarmUpFile`."""

    def build(tensors: dict[str, Any], metadata: dict[str, str]) -> Warmed:
        weights, momentum = (
            {name.removeprefix(kind): tensors[name] for name in tensors if name.startswith(kind)}
            for kind in (_WEIGHTS, _MOMENTUM)
        )
        return Warmed(weights, momentum, int(metadata["step"]), float(metadata["seconds"]))

    return load_tensors(path, "a warm-up", build)


logger = logging.getLogger(__name__)

_MOST_NAMED = 20


# Results count images by their places among those that are used. A repaired image would move all
# behind it, so it stays excluded; an image that broke since then is refused.
def with_kept_quarantine(dataset: Dataset, folder: Path) -> Dataset:
    """The data set with the excluded examples of its first opening from this state directory.

    Raises:
        DataError: other images than those cannot be used.
        StateError: the list in `folder` cannot be read, or stored.
    """
    path = folder / f"{dataset.fingerprint}.json"
    try:
        kept = _read(path)
    except (OSError, ValueError) as error:
        raise StateError(
            f"which images of {dataset.source} are left out is kept in {path}, which cannot be "
            f"used: {error}. Restore it from a backup of the state directory."
        ) from error
    if kept is None:
        _keep(path, dataset)
        return dataset
    broken = sorted(set(dataset.quarantined) - set(kept))
    if broken:
        named = ", ".join(map(str, broken[:_MOST_NAMED]))
        raise DataError(
            f"{len(broken)} images of {dataset.source} cannot be used that could when runs of this "
            f"state directory were made: {named}. Restore them, or begin with another state "
            "directory."
        )
    return replace(dataset, quarantined=kept)


def _read(path: Path) -> tuple[int, ...] | None:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise ValueError("it holds no list of ids")
    return tuple(ids)


def _keep(path: Path, dataset: Dataset) -> None:
    try:
        make_directory(path.parent)
        with temporary_file(path.parent) as (file, temporary):
            write_all(file, json.dumps(dataset.quarantined).encode())
            publish(file, temporary, path)
    except OSError as error:
        if dataset.quarantined:
            raise StateError(
                f"which images of {dataset.source} are left out cannot be kept in {path}: {error}. "
                "Make room, and start again."
            ) from error
        # A full disk is no reason not to serve what is whole.
        logger.warning("that all of %s can be used is not noted: %s", dataset.source, error)


_WARM_UP = "warm-up"
# Of each model of a warm-up its weights, its signals and its gradients' norms; and other questions.
_FILES_PER_MODEL, _MORE_FILES = 3, 9
# Sends a job's progress, or a part of its result.
Report = Callable[[Progressed], None]


@dataclass(frozen=True)
class Context(Workspace):
    """What jobs read and keep, opened when first needed and shared by all jobs of a process.

    The data is opened again where its files have changed since.
    """

    settings: CoordinatorSettings
    send: Report

    @cached_property
    def dataset(self) -> Dataset:
        """The coordinator's data set, without excluded examples."""
        settings = self.settings
        opened = open_dataset(
            settings.dataset.source,
            image_size=settings.dataset.image_size,
            allowed_modules=settings.allow_modules,
            progress=self.progress(f"reading {settings.dataset.source}"),
            bearable=Bearable(settings.dataset.max_corrupt),
        )
        return without_quarantined(with_kept_quarantine(opened, settings.state_dir / "quarantine"))

    def require_data(self, fingerprint: str) -> None:
        """Refuse data with another fingerprint, as it lies at its source now.

        Raises:
            OtherDataError: it is another, or cannot be read any more.
        """
        source = self.settings.dataset.source
        opened = vars(self).get("dataset")
        if opened is not None and opened.has_changed():
            logger.warning("files of %s have changed: it is opened again", source)
            del vars(self)["dataset"]
        remedy = "Put the run's own data back; for other data start a coordinator anew, and a run."
        try:
            found = self.dataset.fingerprint_like(fingerprint)
        except LiptError as error:
            raise OtherDataError(
                f"{source}, which had the fingerprint {fingerprint}, cannot be read any more: "
                f"{error.problem}. {remedy}"
            ) from error
        if found != fingerprint:
            raise OtherDataError(
                f"{source} has the fingerprint {found} now, and {fingerprint} is needed. {remedy}"
            )

    def cached(
        self,
        kind: str,
        depends_on: tuple[object, ...],
        *,
        load: Callable[[Path], SaveableT],
        compute: Callable[[], SaveableT],
        warm_up_models: int = 0,
    ) -> SaveableT:
        """Stored per-example values; not stored if the data changed during the computation."""
        dataset, depends_on = self.dataset, self.on_data(depends_on)
        folder = self.warm_ups_dir if warm_up_models else self.signals_dir
        most_files = _most_warm_up_files(warm_up_models) if warm_up_models else MOST_FILES
        kept = find_cached(folder, kind, depends_on)
        if kept is not None:
            return load(kept)
        value = compute()
        if dataset.has_changed():
            return value
        path = keep(folder, kind, depends_on, value, most_files)
        # Mapped from here on: what was computed can be freed.
        return value if path is None else load(path)

    def find_warm_up(self, depends_on: tuple[object, ...]) -> Warmed | None:
        """A stored, perhaps unfinished ordinary warm-up."""
        kept = find_cached(self.warm_ups_dir, _WARM_UP, self.on_data(depends_on))
        return None if kept is None else read_warm_up(kept)

    def keep_warm_up(self, depends_on: tuple[object, ...], warmed: Warmed, num_models: int) -> None:
        """Store an ordinary warm-up, so that a killed coordinator goes on from there."""
        # It is unknown which part of changed data it was trained on.
        if not self.dataset.has_changed():
            most = _most_warm_up_files(num_models)
            depends_on = self.on_data(depends_on)
            keep(self.warm_ups_dir, _WARM_UP, depends_on, WarmUpFile(warmed), most)

    def on_data(self, depends_on: tuple[object, ...]) -> tuple[object, ...]:
        """`depends_on`, bound to the data as closely as the settings want it."""
        if self.settings.dataset.fingerprint is not FingerprintKind.FULL:
            return depends_on
        # Callers know of the sampled one, which may be that of other data as well.
        return (*depends_on, self.dataset.full_fingerprint)

    @cached_property
    def device(self) -> torch.device:
        """The device of all models."""
        return resolve_device(self.settings.device)

    @cached_property
    def blobs(self) -> BlobStore:
        """The state directory's blobs, shared with the service."""
        settings = self.settings
        return BlobStore(settings.state_dir, max_blob_bytes=settings.limits.max_blob_bytes)

    @cached_property
    def backbone(self) -> Backbone | None:
        """The operator's network for proxies, if there is one."""
        spec = self.settings.backbone
        return None if spec is None else load_backbone(spec, self.device)

    @property
    def has_backbone(self) -> bool:
        """Whether there is one, without opening it."""
        return self.settings.backbone is not None

    @property
    def allowed_modules(self) -> tuple[str, ...]:
        """Modules that model factories may be imported from."""
        return tuple(self.settings.allow_modules)

    @property
    def scratch(self) -> Path:  # type: ignore[override]
        """The folder of arrays too large for memory."""
        return self.signals_dir

    @property
    def signals_dir(self) -> Path:
        """Per-example signals, a cache."""
        return self.settings.state_dir / "signals"

    @property
    def own_fingerprint(self) -> str:
        """The data's fingerprint, of the kind in the settings."""
        full = self.settings.dataset.fingerprint is FingerprintKind.FULL
        return self.dataset.full_fingerprint if full else self.dataset.fingerprint

    @property
    def warm_ups_dir(self) -> Path:
        """Ordinary warm-ups and their signals, a cache."""
        return self.signals_dir / "warm-ups"

    def report(self, activity: str, done: int, total: int) -> None:
        """Report the job's progress."""
        self.send(Progressed(activity, done, total))

    def tell(self, part: object) -> None:
        """Send a part of the job's result before the whole."""
        self.send(Made(part=part))

    def user_features(self, features: BlobName) -> UserFeatures:
        """A user's uploaded features, of the examples in `dataset`."""
        numbering, dataset = self.numbering, self.dataset
        read = read_user_features(
            self.blobs.verified_path(features),
            num_examples=len(dataset) + len(dataset.quarantined),
            max_bytes=self.settings.limits.max_blob_bytes,
        )
        paired_NP = read.paired_features_NP
        return UserFeatures(
            numbering.kept(read.features_ND),
            None if paired_NP is None else numbering.kept(paired_NP),
        )

    def read(self, name: BlobName) -> Path:
        """The path of a blob whose content is its digest's."""
        return self.blobs.verified_path(name)


def _most_warm_up_files(num_models: int) -> int:
    return _FILES_PER_MODEL * num_models + _MORE_FILES
