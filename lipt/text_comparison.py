"""Text comparison: theta* and the choices of a comparison for a target of texts.

`lipt.compare` trains on every choice from a seed's theta*, which the strategies look at, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from lipt.common.errors import InvalidRequestError
from lipt.common.requests import Budget, SubsetRequest
from lipt.core.selection.select import find_strategy
from lipt.core.signals.views import TARGET_NEEDS
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.targets.kinds import TargetKind
from lipt.mixture import mix
from lipt.pretraining import Pretrained, PretrainedStart
from lipt.trainer.comparison.texts import TextTarget
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
                self.pretrained(0).resolve(name, 0.5, **self._asked(name))
        has_sources = len(self.train.source_ids) > 1
        return tuple(dict.fromkeys([*names, *([MIXTURE] if has_sources else [])]))

    def recipe(self, given: Recipe | Mapping[str, Any] | None) -> Recipe:
        """The recipe, by default of a short training."""
        return given if isinstance(given, Recipe) else Recipe.of({**_RECIPE, **(given or {})})

    @property
    def target(self) -> TextTarget:
        """The target's fingerprint, and theta* of each seed."""
        opened = DataForm.of(self.train).open("the target", self.target_data)
        return TextTarget(opened.fingerprint, lambda seed: self.pretrained(seed).theta_star)

    @functools.cached_property
    def pretrained(self) -> Callable[[int], Pretrained]:
        """Each seed's run, of which theta* alone is trained, once."""
        settings: Any = {"run": self.run, "device": self.device, "progress": False}
        return functools.cache(
            lambda seed: PretrainedStart(self.train, self.model, seed=seed, **settings)
        )

    def choose(self, run: Pretrained, strategy: str, *, fraction: float, **_: Any) -> Subset:
        """A seed's examples by a strategy, for the target if it has one, or by a mixture."""
        if strategy != MIXTURE:
            return run.select(strategy, fraction, **self._asked(strategy))
        seed, began = run.config.seed, monotonic()
        settings: Any = {"seed": seed, "run": self.run, "device": self.device, "progress": False}
        found = mix(self.data, self.target_data, self.model, **settings)
        subset = found.sample(Budget(fraction, None).of(len(self.train)), seed=seed)
        costs = {"selection_seconds": monotonic() - began}
        return replace(
            subset, manifest={**subset.manifest, "costs": costs, "uses_pretraining": False}
        )

    def _asked(self, strategy: str) -> dict[str, Any]:
        needs = find_strategy(strategy).needs_of({})
        looks = strategy == SubsetRequest.strategy or needs & TARGET_NEEDS
        return {"target_data": self.target_data} if looks else {}
