"""In memory: a workspace that keeps files as bytes, and what was computed as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data import Dataset
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.frozen_part import LearnerReader
from lipt.core.proxies.backbone import Backbone
from lipt.core.signals.user_features import UserFeatures
from lipt.core.warm_up import Warmed
from lipt.core.workspace import ReadStates, SaveableT, Workspace

# Called with what is done, how much of it, and of how much.
OnProgress = Callable[[str, int, int], None]


class InMemory(Workspace):
    """The workspace of one process: nothing is written anywhere.

    Args:
        dataset: what to choose from.
        device: where models are trained and evaluated.
        allowed_modules: modules that model factories may be imported from.
        on_progress: told how far the work is.
    """

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        allowed_modules: tuple[str, ...] = (),
        on_progress: OnProgress = lambda _activity, _done, _total: None,
    ) -> None:
        self._dataset = dataset
        self._device = device
        self._allowed_modules = allowed_modules
        self._on_progress = on_progress
        self._files: dict[BlobName, bytes] = {}
        self._features: dict[BlobName, UserFeatures] = {}
        self._kept: dict[tuple[object, ...], Any] = {}

    @property
    def dataset(self) -> Dataset:
        """The data set."""
        return self._dataset

    @property
    def device(self) -> torch.device:
        """Where models are trained and evaluated."""
        return self._device

    @property
    def allowed_modules(self) -> tuple[str, ...]:
        """Modules that model factories may be imported from."""
        return self._allowed_modules

    @property
    def backbone(self) -> Backbone | None:
        """None: only a coordinator's operator names one."""
        return None

    def report(self, activity: str, done: int, total: int) -> None:
        """Say how far the work is."""
        self._on_progress(activity, done, total)

    def put(self, content: bytes) -> BlobName:
        """Keep a file."""
        name = BlobName.of(content)
        self._files[name] = content
        return name

    def read(self, name: BlobName) -> bytes:
        """A file that was kept."""
        return self._files[name]

    def put_features(self, features: UserFeatures, content: bytes) -> BlobName:
        """Keep a user's features, by the name of the file that holds them."""
        name = BlobName.of(content)
        self._features[name] = features
        return name

    def read_weights(self, name: BlobName, model: nn.Module) -> Weights:
        """Weights of all tensors of a model, on the CPU."""
        content = self._files[name]
        return read_weights(content, like=specs_of(model.state_dict()), max_bytes=len(content))

    def read_learners(self, config: RunConfig, initial: BlobName, model: nn.Module) -> ReadStates:
        """What reads states of learners, completed by what is frozen in theta*."""
        frozen = self.frozen(config, model)
        weights = self.read_weights(initial, model) if frozen else {}
        reader = LearnerReader.of(specs_of(model.state_dict()), weights, frozen)
        return lambda name: dict(reader.open(self._files[name]))

    def user_features(self, features: BlobName) -> UserFeatures:
        """What a user has given for every example."""
        return self._features[features]

    def cached(
        self,
        kind: str,
        depends_on: tuple[object, ...],
        *,
        load: Callable[[Path], SaveableT],  # noqa: ARG002 - there are no files
        compute: Callable[[], SaveableT],
        warm_up_models: int = 0,  # noqa: ARG002 - everything is kept
    ) -> SaveableT:
        """What `compute` makes, once."""
        key = (kind, repr(depends_on))
        if key not in self._kept:
            self._kept[key] = compute()
        kept: SaveableT = self._kept[key]
        return kept

    def find_warm_up(self, depends_on: tuple[object, ...]) -> Warmed | None:
        """An ordinary warm-up that has ended."""
        found: Warmed | None = self._kept.get(("warm-up", repr(depends_on)))
        return found

    def keep_warm_up(
        self,
        depends_on: tuple[object, ...],
        warmed: Warmed,
        num_models: int,  # noqa: ARG002 - everything is kept
    ) -> None:
        """Keep how far an ordinary warm-up is."""
        self._kept["warm-up", repr(depends_on)] = warmed
