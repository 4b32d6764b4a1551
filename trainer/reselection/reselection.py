"""Re-selection: the subset chosen again every R epochs, and samplers that hand it to a DataLoader.

While the coordinator is away the old subset stays, one warning says so, and the next epoch asks
again. With several processes, rank 0 asks and broadcasts the answer. A sampler runs in the process
that owns the DataLoader, so a subset may change under `persistent_workers=True` too. All ranks know
an epoch's whole order, and each takes every `num_ranks`-th example of it.

Shapes: N examples of an order.
Source: LiPT (Ro et al. 2023), section 4: every 20 epochs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Sampler

from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, LiptError
from lipt.common.weights.files import pack
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.subsets.weighted import normalized_weights

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client


class ReselectionWarning(UserWarning):
    """A due subset is unavailable; training goes on with the old one."""


@dataclass(frozen=True)
class Selected:
    """One re-selection.

    stale_epochs: age of the weights when their subset came into use.
    waited_seconds: how long training waited for it.
    """

    epoch: int
    digest: str
    stale_epochs: int
    waited_seconds: float


class SelectionOptions(TypedDict, total=False):
    """The keywords of `Reselection`."""

    run: str
    fraction: float | None
    budget: int | None
    every: int
    options: Mapping[str, object] | None
    preset: str | None
    balanced: bool | None
    proxy: str | None
    soft_labels: bool
    prefetch: bool
    num_epochs: int | None
    first: Subset | None


class Reselection:
    """Asks a coordinator for a model's subset whenever one is due.

    Args:
        client: its `reconnect_seconds` limits how long an epoch waits for the coordinator.
        model: in training; the coordinator selects on its state dict, without wrappers
            (DistributedDataParallel, torch.compile).
        strategy: one of `client.strategies()`.
        run: whose data and model these are: id, name, or "latest".
        fraction: of the data set; this or `budget`.
        budget: number of examples; this or `fraction`.
        every: epochs between selections, R.
        options: the strategy's own, by name; a warm-up (`pretraining`) is that of the first
            subset alone.
        preset: as in `client.subset`, and so are `balanced`, `proxy` and `soft_labels`.
        prefetch: ask one epoch early, in a thread, on weights one epoch old.
        num_epochs: of the whole training, where known: no subset is requested for later ones.
        first: the subset of the first epochs; selected on theta_p where None.

    Raises:
        ConfigError: `every` is below 1, or the strategy does not use weights in training.
        LiptError: the first subset is refused.
    """

    def __init__(
        self,
        client: Client,
        model: nn.Module,
        strategy: str = "facility_location",
        *,
        run: str = "latest",
        fraction: float | None = None,
        budget: int | None = None,
        every: int = 20,
        options: Mapping[str, object] | None = None,
        preset: str | None = None,
        balanced: bool | None = None,
        proxy: str | None = None,
        soft_labels: bool = False,
        prefetch: bool = False,
        num_epochs: int | None = None,
        first: Subset | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(
                f"every = {every}: a subset is selected again after 1 epoch or more. "
                "The paper's choice is 20."
            )
        self._every, self._prefetch = every, prefetch
        self._model = model
        self.num_epochs = num_epochs
        asked: dict[str, Any] = {
            "run": run,
            "strategy": strategy,
            "fraction": fraction,
            "budget": budget,
            "balanced": balanced,
        }
        # Left out where not given: the identity in older checkpoints has none of them.
        given = {"preset": preset, "proxy": proxy, "soft_labels": soft_labels or None}
        asked |= {name: value for name, value in given.items() if value is not None}
        texts = {name: str(value) for name, value in (options or {}).items()}
        self.identity: Mapping[str, Any] = {
            **asked,
            "options": texts,
            "every": every,
            "prefetch": prefetch,
        }
        # Weights in training have their own pre-training.
        later = {name: value for name, value in (options or {}).items() if name != "pretraining"}
        later_options = later if options else options
        self._ask: Callable[..., Subset] = partial(client.subset, **asked, options=later_options)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="reselect")
        # The prefetched subset; on other ranks than 0, never waited for.
        self._asked: Future[Subset] | None = None
        self._due = self._warned = False
        self._last_epoch: int | None = None
        self.history: list[Selected] = []

        def ask_first() -> Subset:
            require_reselectable(client, strategy)
            return client.subset(**asked, options=options, weights=None, previous=None)

        self.subset = self._on_rank_0(ask_first) if first is None else first

    @property
    def waited_seconds(self) -> float:
        """Seconds that training has waited for subsets."""
        return sum(selected.waited_seconds for selected in self.history)

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0; asks where one is due.

        Call it before every epoch, on every rank, with growing numbers; repeating a number changes
        nothing. Resumed training sets `subset` first, and begins with the next epoch's number.

        Raises:
            LiptError: a refusal that asking again would not change.
        """
        if epoch == self._last_epoch or not self._comes(epoch):
            return self.subset
        if self._last_epoch is None:
            crossed = epoch > 0 and epoch % self._every == 0
        else:
            crossed = epoch // self._every > self._last_epoch // self._every
        self._last_epoch = epoch
        self._due = self._due or crossed
        if self._due:
            self._select(epoch)
        if self._prefetch and (epoch + 1) % self._every == 0 and self._comes(epoch + 1):
            self._asked = Future()
            if _rank_of_ranks()[0] == 0:
                weights = _weights_of(self._model)
                self._asked = self._executor.submit(
                    copy_context().run, self._ask, weights=weights, previous=self.subset
                )
        return self.subset

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint's state, as JSON values."""
        return {"epoch": self._last_epoch, "due": self._due, "subset": self.subset.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; a prefetched subset is dropped.

        Raises:
            SubsetError: the subset is damaged.
        """
        self.subset = Subset.from_json(state["subset"])
        self._last_epoch, self._due = state["epoch"], state["due"]
        self._asked = None

    def _comes(self, epoch: int) -> bool:
        return self.num_epochs is None or epoch < self.num_epochs

    def _select(self, epoch: int) -> None:
        started = monotonic()
        asked, self._asked = self._asked, None
        try:
            chosen = self._on_rank_0(asked.result if asked else self._again)
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
        waited = monotonic() - started
        self.history.append(
            Selected(
                epoch, chosen.digest, stale_epochs=int(asked is not None), waited_seconds=waited
            )
        )

    def _again(self) -> Subset:
        return self._ask(weights=_weights_of(self._model), previous=self.subset)

    def _on_rank_0(self, ask: Callable[[], Subset]) -> Subset:
        rank, num_ranks = _rank_of_ranks()
        if num_ranks == 1:
            return ask()
        answer: list[Any] = [None]
        if rank == 0:
            try:
                answer[0] = ask()
            except (LiptError, OSError) as error:
                answer[0] = error
        distributed.broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        chosen: Subset = answer[0]
        return chosen


def require_reselectable(client: Client, strategy: str) -> None:
    """Refuse a strategy that uses a run's learners, before training begins.

    Raises:
        ConfigError: it does.
    """
    views = [view for view in client.strategies() if view.name == strategy]
    if views and "learners" in views[0].needs:
        raise ConfigError(
            f"{strategy} selects by a run's learners, which weights in training do not change. "
            "Train on its one subset (client.subset, or 'lipt subset get'), or take another "
            "strategy."
        )


def _rank_of_ranks() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _weights_of(model: nn.Module) -> bytes:
    inner = model
    if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
        inner = inner.module
    compiled = getattr(inner, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        inner = compiled
    with torch.no_grad():
        return pack(inner.state_dict())


# What happens to the examples that do not divide evenly among the ranks.
Uneven = Literal["keep", "drop", "repeat"]

# This many row numbers become Python's ints at a time.
_BLOCK = 16_384


def deal(order_N: Tensor, rank: int, num_ranks: int, uneven: Uneven) -> Tensor:
    """A rank's part of an order that is the same on every rank: see `SubsetSampler`."""
    left_over = len(order_N) % num_ranks
    if left_over and uneven == "drop":
        order_N = order_N[: len(order_N) - left_over]
    elif left_over and uneven == "repeat":
        missing = num_ranks - left_over
        repeats = -(-missing // len(order_N))
        order_N = torch.cat([order_N, order_N.repeat(repeats)[:missing]])
    return order_N[rank::num_ranks]


def num_dealt(num_examples: int, rank: int, num_ranks: int, uneven: Uneven) -> int:
    """The length of `deal`'s part, without an order."""
    fewest, left_over = divmod(num_examples, num_ranks)
    one_more = bool(left_over) if uneven == "repeat" else uneven == "keep" and rank < left_over
    return fewest + one_more


def in_blocks(order_N: Tensor) -> Iterator[Tensor]:
    """An order in small pieces, to make Python's ints of."""
    for start in range(0, len(order_N), _BLOCK):
        yield order_N[start : start + _BLOCK]


def require_rank(rank: int, num_ranks: int) -> None:
    """Refuse a rank outside 0..num_ranks - 1 by ConfigError."""
    if not 0 <= rank < num_ranks:
        raise ConfigError(
            f"rank {rank} is not one of {num_ranks}. Ranks count from 0 to "
            f"num_ranks - 1, here {num_ranks - 1}."
        )


class SubsetSampler(Sampler[int]):
    """A subset's indices in a new order every epoch.

    Args:
        subset: whose indices.
        shuffle: whether the order changes; ascending otherwise.
        seed: of the order, together with the epoch; the same on every rank.
        rank: which of the processes this is, from 0.
        num_ranks: how many processes train together.
        uneven: where the subset does not divide by `num_ranks`: "keep" gives the first
            ranks one example more, "drop" leaves the last examples of the order out, and
            "repeat" gives its first ones to the other ranks again, as `DistributedSampler`
            does. Synchronized training needs one of the last two.
        soft_labels: alpha, the soft label's share of a training target, for the callbacks of
            Lightning and Hugging Face; 0 trains on labels alone.

    Raises:
        ConfigError: `rank` is not one of `num_ranks`, or the subset is empty, or has no soft
            labels where they are to be trained on.
    """

    def __init__(
        self,
        subset: Subset,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        uneven: Uneven = "keep",
        soft_labels: float = 0.0,
    ) -> None:
        require_rank(rank, num_ranks)
        if not len(subset):
            raise ConfigError("the subset is empty, so there is nothing to draw. Get another.")
        if soft_labels and subset.soft_labels is None:
            raise ConfigError(
                f"soft_labels is {soft_labels}, and the subset has none. Get it with "
                "soft_labels=True."
            )
        self.subset, self.alpha = subset, soft_labels
        self._shuffle, self._seed = shuffle, seed
        self._rank, self.num_ranks = rank, num_ranks
        self._uneven: Uneven = uneven
        self._epoch = 0
        self._dealt_weights_N = torch.ones(0)
        self._dealt_soft_labels_NC: Tensor | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether examples of the present epoch count differently in the loss."""
        dealt_N = self._dealt_weights_N
        return bool(len(dealt_N)) and bool(dealt_N.min() != dealt_N.max())

    def weights(self, batch: int, batch_size: int) -> Tensor:
        """The weights of the present epoch's `batch`-th batch, float32, of mean 1 in the subset."""
        return self._dealt_weights_N[batch * batch_size : (batch + 1) * batch_size]

    def soft_labels(self, batch: int, batch_size: int) -> Tensor | None:
        """The soft labels of one of the present epoch's batches; None where none are wanted."""
        if self._dealt_soft_labels_NC is None:
            return None
        return self._dealt_soft_labels_NC[batch * batch_size : (batch + 1) * batch_size]

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch from the next `iter` on; call it before each epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return num_dealt(len(self.subset), self._rank, self.num_ranks, self._uneven)

    def __iter__(self) -> Iterator[int]:
        # Of this epoch, whatever subset the next one has.
        subset, order_N = self.subset, torch.arange(len(self.subset))
        if self._shuffle:
            generator = derive_generator(self._seed, "sampler-order", self._epoch)
            order_N = torch.randperm(len(subset), generator=generator)
        share_N = deal(order_N, self._rank, self.num_ranks, self._uneven)
        self._dealt_weights_N = torch.ones(1).expand(len(share_N))
        if subset.is_weighted:
            weights_N = normalized_weights(torch.from_numpy(subset.weights.copy()))
            self._dealt_weights_N = weights_N[share_N]
        if self.alpha and subset.soft_labels is not None:
            self._dealt_soft_labels_NC = torch.from_numpy(subset.soft_labels[share_N.numpy()])
        for share_B in in_blocks(share_N):
            yield from subset.indices[share_B.numpy()].tolist()


class ReselectingSampler(SubsetSampler):
    """A subset that is chosen again every R epochs, on the model's present weights.

    `set_epoch` asks when it is due, so call it before each epoch, on every rank.

        sampler = ReselectingSampler(client, model, "craig", fraction=0.1, every=20)
        loader = DataLoader(data, batch_size=256, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for images, labels in loader: ...

    `shuffle`, `seed`, `rank`, `num_ranks` and `uneven` are those of `SubsetSampler`, and `alpha`
    its `soft_labels`; all other arguments, such as `fraction`, `every` and `prefetch`, those of
    `Reselection`.

    Attributes:
        reselection: what was selected when, and how long training waited for it.

    Raises:
        ConfigError, LiptError: as `Reselection` and `SubsetSampler`.
    """

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
        asked: SelectionOptions = {"soft_labels": alpha > 0, **selection}
        self.reselection = Reselection(client, model, strategy, **asked)
        super().__init__(
            self.reselection.subset,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            num_ranks=num_ranks,
            uneven=uneven,
            soft_labels=alpha,
        )

    def set_epoch(self, epoch: int) -> None:
        """Take this epoch's order, and its subset where one is due."""
        super().set_epoch(epoch)
        self.subset = self.reselection.before_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint's state, as JSON values."""
        return {"epoch": self._epoch, "reselection": self.reselection.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with `set_epoch` of the same epoch or the next."""
        self.reselection.load_state_dict(state["reselection"])
        self.subset = self.reselection.subset
        self._epoch = state["epoch"]
