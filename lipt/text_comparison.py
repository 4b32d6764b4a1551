"""Text comparison: theta* and the choices of a comparison for a target of texts.

`lipt.compare` trains on every choice from the same theta*. A strategy trains a theta* of its own
with the same settings, as `lipt.select` does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch

from lipt.common.config.run_config import merge, mixture_preset
from lipt.common.determinism import derive_generator
from lipt.common.errors import InvalidRequestError
from lipt.common.requests import Budget
from lipt.common.subsets import subset_digest
from lipt.common.tensor_files import Weights
from lipt.core.mixture.target_drops import SHARED_STEPS
from lipt.core.pipeline import begin
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.targets.kinds import TargetKind
from lipt.mixture import mix
from lipt.pretraining import Pretrained
from lipt.target_selection import budget_for, select_for_target
from lipt.trainer.comparison.texts import TextTarget
from lipt.trainer.comparison.trial import FIXED
from lipt.trainer.main_training import Recipe
from lipt.trainer.subsets.subset import Subset

MIXTURE = "mixture"
# Of trainings, where a recipe does not set them.
_RECIPE: Mapping[str, Any] = {
    "steps": 100,
    "batch_size": 32,
    "warmup_steps": 10,
    "weight_decay": 0.01,
}


@dataclass(frozen=True)
class TextChoices:
    """The data and the target of a comparison, and what is trained and chosen for a seed."""

    data: Any
    train: Dataset
    target_data: Any
    model: Any
    run: Mapping[str, Any]
    device: str

    def __post_init__(self) -> None:
        if self.train.target.kind is not TargetKind.TOKENS or not isinstance(
            self.model, str | None
        ):
            raise InvalidRequestError(
                f"target_data was given with {self.train.target.kind.words} data and the model "
                f"{self.model!r:.60}. Give texts whose next tokens are predicted, and the model's "
                "name, or leave target_data out."
            )

    def strategies(self, names: Sequence[str]) -> tuple[str, ...]:
        """The strategies, checked, and the mixture where the data names its sources."""
        for name in names:
            if name != MIXTURE:
                budget_for(name, 0.5, {})
        has_sources = len(self.train.source_ids) > 1
        return tuple(dict.fromkeys([*names, *([MIXTURE] if has_sources else [])]))

    def recipe(self, given: Recipe | Mapping[str, Any] | None) -> Recipe:
        """The recipe, by default of a short training."""
        return given if isinstance(given, Recipe) else Recipe.of({**_RECIPE, **(given or {})})

    @property
    def target(self) -> TextTarget:
        """The target's fingerprint, and theta* of each seed."""
        opened = DataForm.of(self.train).open("the target", self.target_data)
        return TextTarget(opened.fingerprint, functools.cache(self._theta))

    def pretrained(self, seed: int) -> Pretrained:
        """A seed's run, of which theta* alone is trained."""
        preset = mixture_preset(of_texts=True)["initialization"]
        settings = {"initialization": {**preset, "steps": SHARED_STEPS}}
        return Pretrained(
            self.train,
            self.model,
            seed=seed,
            run=merge(settings, self.run),
            device=self.device,
            progress=False,
        )

    def _theta(self, seed: int) -> Weights:
        begun = self.pretrained(seed)
        name = begin(begun.workspace, begun.config, None).outcome.initial_weights
        assert name is not None  # noqa: S101 - it was just made
        return begun.workspace.read_weights(name, begun.workspace.new_model(begun.config))

    def choose(self, run: Pretrained, strategy: str, *, fraction: float, **_: Any) -> Subset:
        """A seed's examples by a strategy for the target, at random, or by a mixture's shares."""
        seed, began = run.config.seed, monotonic()
        number = Budget(fraction, None).of(len(self.train))
        if strategy == FIXED[0]:
            return self._random(number, seed)
        given: dict[str, Any] = {"seed": seed, "run": self.run, "device": self.device}
        if strategy == MIXTURE:
            found = mix(self.data, self.target_data, self.model, progress=False, **given)
            subset = found.sample(number, seed=seed)
        else:
            subset = select_for_target(
                self.data,
                self.target_data,
                self.model,
                budget_for(strategy, fraction, {}),
                target=None,
                head=None,
                image_size=None,
                allow_modules=(),
                progress=False,
                **given,
            )
        costs = {"selection_seconds": monotonic() - began}
        return replace(
            subset, manifest={**subset.manifest, "costs": costs, "uses_pretraining": False}
        )

    def _random(self, number: int, seed: int) -> Subset:
        draws = derive_generator(seed, "random texts")
        rows = torch.randperm(len(self.train), generator=draws)[:number].sort().values.numpy()
        weights = torch.ones(number).numpy()
        digest = subset_digest(rows, weights)
        return Subset(rows, weights, self.train.fingerprint, digest, FIXED[0], {})
