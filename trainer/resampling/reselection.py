"""Re-selection: select a new subset every R epochs, with the model's current weights.

While the coordinator is unreachable, training keeps the old subset, warns once, and asks again
before the next epoch. With several processes, rank 0 asks and broadcasts the answer. Source: LiPT
(Ro et al. 2023), section 4: every 20 epochs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from torch import distributed, nn

from lipt.common.errors import ConfigError, LiptError
from lipt.common.tensor_files import pack
from lipt.models.own_model import plain_state
from lipt.trainer.arguments import checked
from lipt.trainer.client.sources import SelectionArguments
from lipt.trainer.resampling.samplers import Ranks, SubsetSampler, Uneven
from lipt.trainer.subsets.subset import Subset

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client


class ReselectionWarning(UserWarning):
    """A due subset is unavailable; training continues on the old one."""


@dataclass(frozen=True)
class Selected:
    """One re-selection, and how long training waited for it."""

    epoch: int
    digest: str
    waited_seconds: float


class RequestArguments(SelectionArguments, total=False):
    """Arguments of `Client.subset` that are the same in every request."""

    run: str
    """Id, name, or "latest"."""
    fraction: float | None
    """Share of the data."""


class SelectionOptions(RequestArguments, total=False):
    every: int
    num_epochs: int | None
    first: Subset | None


class Reselection:
    """Requests a subset for the model's current weights every R epochs.

    Args:
        client: its `reconnect_seconds` limits how long an epoch waits for the coordinator.
        model: model in training; its state dict is sent without wrappers (DDP, torch.compile).
        strategy: one of `client.strategies()`.
        every: epochs between selections, R.
        num_epochs: length of training, where known; no subset is requested for later epochs.
        first: the subset of the first epochs; None selects it with theta_p.

    The option `pretraining` applies to the first subset only.

    Raises:
        ConfigError: an argument has another type, or the strategy selects by a run's learners.
        LiptError: the first subset is refused.
    """

    @checked
    def __init__(
        self,
        client: Client,
        model: nn.Module,
        strategy: str = "facility_location",
        *,
        every: int = 20,
        num_epochs: int | None = None,
        first: Subset | None = None,
        **request: Unpack[RequestArguments],
    ) -> None:
        self._model, self._every = model, every
        self.num_epochs = num_epochs
        given: dict[str, Any] = {key: value for key, value in request.items() if value is not None}
        options: Mapping[str, object] = given.pop("options", {})
        asked = {"run": "latest", "strategy": strategy, **given}
        texts = {name: str(value) for name, value in options.items()}
        self.identity: Mapping[str, Any] = {**asked, "options": texts, "every": every}
        # A model in training needs no warm-up.
        later = {name: value for name, value in options.items() if name != "pretraining"}
        self._ask: Callable[..., Subset] = partial(client.subset, **asked, options=later)
        self._due = self._warned = False
        self._last_epoch: int | None = None
        self.history: list[Selected] = []

        def ask_first() -> Subset:
            for view in client.strategies():
                if view.name == strategy and "learners" in view.needs:
                    raise ConfigError(
                        f"{strategy} selects by a run's learners, which weights in training do not "
                        "change. Train on its one subset (client.subset), or take another strategy."
                    )
            return client.subset(**asked, options=options)

        started = monotonic()
        self.subset = self._on_rank_0(ask_first) if first is None else first
        self._first_seconds = monotonic() - started

    @property
    def waited_seconds(self) -> float:
        """Seconds that training has waited for subsets."""
        return self._first_seconds + sum(selected.waited_seconds for selected in self.history)

    def before_epoch(self, epoch: int) -> Subset:
        """Return the subset of an epoch, counted from 0; request one where it is due.

        Call it before every epoch, on every rank, with increasing numbers; a repeated number
        changes nothing. Resumed training sets `subset` first, and goes on with the next number.
        """
        is_past = self.num_epochs is not None and epoch >= self.num_epochs
        if epoch == self._last_epoch or is_past:
            return self.subset
        if self._last_epoch is None:
            crossed = epoch > 0 and epoch % self._every == 0
        else:
            crossed = epoch // self._every > self._last_epoch // self._every
        self._last_epoch = epoch
        self._due = self._due or crossed
        if self._due:
            self._select(epoch)
        return self.subset

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's state, as JSON values."""
        return {"epoch": self._last_epoch, "due": self._due, "subset": self.subset.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.subset = Subset.from_json(state["subset"])
        self._last_epoch, self._due = state["epoch"], state["due"]

    def _select(self, epoch: int) -> None:
        started = monotonic()
        try:
            chosen = self._on_rank_0(
                lambda: self._ask(weights=pack(plain_state(self._model)), previous=self.subset)
            )
        except (LiptError, OSError) as error:
            if isinstance(error, LiptError) and not error.retryable:
                raise
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"epoch {epoch}: no new subset ({error}). Training goes on with the old one "
                    f"of {len(self.subset)} examples and asks again before the next epoch.",
                    ReselectionWarning,
                    stacklevel=3,
                )
            return
        self._due = self._warned = False
        self.subset = chosen
        self.history.append(Selected(epoch, chosen.digest, monotonic() - started))

    def _on_rank_0(self, ask: Callable[[], Subset]) -> Subset:
        if not distributed.is_available() or not distributed.is_initialized():
            return ask()
        answer: list[Any] = [None]
        if distributed.get_rank() == 0:
            try:
                answer[0] = ask()
            except (LiptError, OSError) as error:
                answer[0] = error
        distributed.broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        chosen: Subset = answer[0]
        return chosen


class ReselectingSampler(SubsetSampler):
    """A subset that is selected again every R epochs, with the model's current weights.

        sampler = ReselectingSampler(client, model, "craig", fraction=0.1, every=20)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)  # on every rank; requests a subset where it is due
            for images, labels in loader: ...

    `shuffle`, `seed`, `rank`, `num_ranks`, `uneven` and `alpha` are those of `SubsetSampler`. All
    other arguments, such as `fraction` and `every`, and errors are those of
    `Reselection`. The attribute `reselection` has the history of selections.
    """

    @checked
    def __init__(
        self,
        client: Client,
        model: nn.Module,
        strategy: str = "facility_location",
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
        alpha: float = 0.0,
        **selection: Unpack[SelectionOptions],
    ) -> None:
        if alpha:
            selection["soft_labels"] = True
        self.reselection = Reselection(client, model, strategy, **selection)
        ranks: Ranks = {"rank": rank, "num_ranks": num_ranks, "uneven": uneven}
        subset = self.reselection.subset
        super().__init__(subset, shuffle=shuffle, seed=seed, alpha=alpha, **ranks)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch's order, and request its subset where it is due."""
        super().set_epoch(epoch)
        self.subset = self.reselection.before_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's state, as JSON values."""
        return {**super().state_dict(), "reselection": self.reselection.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with `set_epoch` of the same epoch or the next."""
        super().load_state_dict(state)
        self.reselection.load_state_dict(state["reselection"])
        self.subset = self.reselection.subset
