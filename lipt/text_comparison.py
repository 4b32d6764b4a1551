"""Text comparison: theta* and the choices of a comparison for a target of texts.

`lipt.compare` trains on every choice from a seed's theta*, which the strategies look at, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Self

from lipt.common.errors import InvalidRequestError
from lipt.common.requests import Budget, SubsetRequest
from lipt.core.selection.select import find_strategy
from lipt.core.signals.views import TARGET_NEEDS
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.joining import joined
from lipt.data.targets.kinds import TargetKind
from lipt.mixture import mix
from lipt.pretraining import Pretrained, PretrainedStart
from lipt.trainer.client.targets import parts_of
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
    """The data and the target of a comparison, and what is trained and chosen for a seed.

    parts: the target, opened, by the names of its parts.
    settings: arguments of each seed's run, besides the data and the model.
    """

    train: Dataset
    parts: Mapping[str, Dataset]
    model: Any
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.train.target.kind is not TargetKind.TOKENS or not isinstance(
            self.model, str | None
        ):
            raise InvalidRequestError(
                f"target_data was given with {self.train.target.kind.words} data and the model "
                f"{self.model!r:.60}. Give texts whose next tokens are predicted, and the model's "
                "name, or leave target_data out."
            )

    @classmethod
    def of(
        cls,
        train: Dataset,
        target_data: Any,
        model: Any,
        *,
        target: str | None,
        settings: Mapping[str, Any],
    ) -> Self:
        """The choices for a target, or a mapping from its parts' names to theirs."""
        form, modules = DataForm.of(train), settings["allow_modules"]
        parts = {
            name: form.open(name, data, target=target, allow_modules=modules)
            for name, data in parts_of(target_data).items()
        }
        return cls(train, parts, model, settings)

    def require_other(self, test: Dataset) -> None:
        """Refuse the target's own texts as the test set."""
        if test.fingerprint in {part.fingerprint for part in self.parts.values()}:
            raise InvalidRequestError(
                f"the test data {test.source} is the target itself, for which examples are chosen. "
                "Hold other texts out for the test."
            )

    def strategies(
        self, names: Sequence[str], *, proxy: str | None, soft_labels: bool
    ) -> tuple[str, ...]:
        """The strategies, checked, and the mixture where the data names its sources."""
        has_sources = len(self.train.source_ids) > 1
        if MIXTURE in names and not has_sources:
            raise InvalidRequestError(
                f"a mixture is of several sources, and {self.train.source} names none. Name the "
                "column of each row's source, source=COLUMN, or leave the mixture out."
            )
        # A mixture takes neither a proxy nor soft labels.
        for name in [name for name in names if name != MIXTURE] or [FIXED[0]]:
            asked = {"proxy": proxy, "soft_labels": soft_labels, **self._asked(name)}
            self.pretrained(0).resolve(name, 0.5, **asked)
        return tuple(dict.fromkeys([*names, *([MIXTURE] if has_sources else [])]))

    def recipe(self, given: Recipe | Mapping[str, Any] | None) -> Recipe:
        """The recipe, by default of a short training."""
        if isinstance(given, Recipe):
            return given
        given = Recipe.of(given).model_dump(exclude_unset=True)
        # Epochs that are given count.
        return Recipe.of({**_RECIPE, **({"steps": None} if "epochs" in given else {}), **given})

    @property
    def target(self) -> TextTarget:
        """The target's fingerprint, and theta* of each seed."""
        return TextTarget(self.whole.fingerprint, lambda seed: self.pretrained(seed).theta_star)

    @functools.cached_property
    def whole(self) -> Dataset:
        """All of the target."""
        first, *further = self.parts.values()
        return joined(list(self.parts.items())) if further else first

    @functools.cached_property
    def pretrained(self) -> Callable[[int], Pretrained]:
        """Each seed's run, of which theta* alone is trained, once."""
        return functools.cache(
            lambda seed: PretrainedStart(self.train, self.model, **self._settings(seed))
        )

    def choose(self, run: Pretrained, strategy: str, *, fraction: float, **_: Any) -> Subset:
        """A seed's examples by a strategy, for the target if it has one, or by a mixture."""
        if strategy != MIXTURE:
            return run.select(strategy, fraction, **self._asked(strategy))
        seed, began = run.config.seed, monotonic()
        mixture = mix(self.train, self.whole, self.model, **self._settings(seed))
        subset = mixture.sample(Budget(fraction, None).of(len(self.train)), seed=seed)
        costs = {"selection_seconds": monotonic() - began}
        return replace(
            subset, manifest={**subset.manifest, "costs": costs, "uses_pretraining": False}
        )

    def _asked(self, strategy: str) -> dict[str, Any]:
        needs = find_strategy(strategy).needs_of({})
        looks = strategy == SubsetRequest.strategy or needs & TARGET_NEEDS
        return {"target_data": self.parts} if looks else {}

    def _settings(self, seed: int) -> dict[str, Any]:
        return {**self.settings, "seed": seed, "progress": False}
