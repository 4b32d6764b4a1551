"""Examples of main training: which ones an epoch has, and how they get to the device.

Shapes: N examples of the data set, K of the subset, B of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.data.parallel import reading_ahead
from lipt.common.errors import DataError, SubsetError
from lipt.common.inputs.model_input import Stored, pinned, rows_of, stored_on
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.subsets.weighted import normalized_weights

# On the CPU, where a data set in memory would only be copied; and the share of what is
# free on an accelerator.
_MAX_CPU_BYTES = 4 * 1024**3
_MAX_DEVICE_SHARE = 0.5


class TrainingImages:
    """Some examples as they are stored, batch by batch, on the device.

    They are resident there where they fit: they travel once, and every later epoch costs an
    index. Otherwise a thread decodes the next batch while the present one is trained on.

    Args:
        dataset: where they come from.
        ids_N: the examples, int64; positions below refer to this order.
        device: where batches are wanted.
        resident: whether all are kept on the device; decided by their size where None.
    """

    def __init__(
        self, dataset: Dataset, ids_N: Tensor, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self._dataset = dataset
        self._ids_N = ids_N
        self._device = device
        size_bytes = len(ids_N) * dataset.inputs.num_bytes
        keep = size_bytes <= _room_bytes(device) if resident is None else resident
        self._examples_N = stored_on(dataset.examples(ids_N), device) if keep else None

    @property
    def resident(self) -> bool:
        """Whether all of them lie on the device."""
        return self._examples_N is not None

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Stored]:
        """The examples of each batch of positions, in order."""
        if self._examples_N is not None:
            for there_B in sent(positions, self._device):
                yield rows_of(self._examples_N, there_B)
            return
        with reading_ahead(self._decode, positions) as decoded:
            for examples_B in decoded:
                yield stored_on(examples_B, self._device, non_blocking=True)

    def _decode(self, positions_B: Tensor) -> Stored:
        examples_B = self._dataset.examples(self._ids_N[positions_B])
        return pinned(examples_B) if self._device.type == "cuda" else examples_B


def sent(positions: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Each batch of positions on the device: all travel at once, and are not waited for."""
    there_N = torch.cat(list(positions)).to(device, non_blocking=True)
    return torch.split(there_N, list(map(len, positions)))


def _room_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _MAX_CPU_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(free_bytes * _MAX_DEVICE_SHARE)


# In a subset's manifest: its weights count as they are, whatever their mean.
ABSOLUTE_WEIGHTS = "absolute_weights"


class SubsetSource(Protocol):
    """Where another subset may come from before an epoch, such as a `Reselection`.

    subset: the present one; main training that goes on sets the checkpoint's.
    num_epochs: how many there will be in all, as far as can be told; main training sets it
        before every epoch, so that nothing is asked for that comes too late to be used.
    """

    subset: Subset
    num_epochs: int | None

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the subsets, as JSON: training goes on only where it is the same."""
        ...

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0."""
        ...


@runtime_checkable
class LossDriven(SubsetSource, Protocol):
    """A source that looks at the losses of what was trained on, and so has a state.

    budget: how many examples an epoch of a fixed subset would have: the number of steps is
        that of training on one, where the recipe counts epochs.
    """

    budget: int

    def update(self, ids_M: Tensor, losses_M: Tensor) -> None:
        """Take an epoch's losses: int64 row numbers and a loss for each, on the CPU."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs to go on with the same subsets."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        ...


# Given the model in training, and the subset to begin with or None where it is to be asked for.
MakeSubsetSource = Callable[[nn.Module, Subset | None], SubsetSource]


@dataclass(frozen=True)
class Batch:
    """Examples of one step, on the device: as they are stored, their targets, float32 B.

    copies_K: which of them are copies of an augmented coreset's, int64; None without one.
    """

    examples_B: Stored
    targets_B: Tensor
    weights_B: Tensor
    copies_K: Tensor | None = None


class Examples:
    """A subset of a data set, or all of it, and copies of a coreset's examples if there is one.

    Args:
        subset: what they come from; None for all examples.
        dataset: what the subset is of.
        device: where batches are wanted.
        weighted: whether the subsets' weights count.
        coreset: what is copied, for an augmentation of its own; it need not be in `subset`.

    Attributes:
        ids_N: which of the data set's examples, int64, on the CPU; without the copies.
        subset: as given.

    Raises:
        SubsetError: a subset is empty, or another data set's.
    """

    def __init__(
        self,
        subset: Subset | None,
        dataset: Dataset,
        device: torch.device,
        *,
        weighted: bool,
        coreset: Subset | None = None,
    ) -> None:
        self.subset, self.ids_N = subset, torch.arange(len(dataset))
        weights_N = torch.ones(len(self.ids_N))
        if subset is not None:
            self.ids_N, weights_N = _listed(subset, dataset, weighted=weighted)
        all_ids_N = self.ids_N
        if coreset is not None:
            ids_N, copies_weights_N = _listed(coreset, dataset, weighted=weighted)
            all_ids_N = torch.cat([all_ids_N, ids_N])
            weights_N = torch.cat([weights_N, copies_weights_N])
        self._num_copies = len(all_ids_N) - len(self.ids_N)
        self._targets_N = dataset.targets_N[all_ids_N].to(device)
        self._weights_N = weights_N.to(device)
        self._images = TrainingImages(dataset, all_ids_N, device)

    def __len__(self) -> int:
        """How many there are to train on, with the copies, which are the last."""
        return len(self.ids_N) + self._num_copies

    @property
    def digest(self) -> str:
        """The subset's; empty for all examples."""
        return "" if self.subset is None else self.subset.digest

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Batch]:
        """The examples at each batch of positions, in order; int64, on the CPU."""
        device = self._targets_N.device
        there, images = sent(positions, device), self._images.batches(positions)
        copies = self._copies(positions, device)
        for there_B, examples_B, copies_K in zip(there, images, copies, strict=True):
            targets_B, weights_B = self._targets_N[there_B], self._weights_N[there_B]
            yield Batch(examples_B, targets_B, weights_B, copies_K)

    def _copies(self, positions: Sequence[Tensor], device: torch.device) -> Sequence[Tensor | None]:
        """Where in each batch the copies are; found on the CPU, so that nothing waits."""
        if not self._num_copies:
            return [None] * len(positions)
        there = [torch.nonzero(ids_B >= len(self.ids_N)).flatten() for ids_B in positions]
        return sent(there, device)


def require_comparable(test: Dataset, train: Dataset) -> None:
    """Refuse a test set whose accuracy would mean nothing, before anything is trained.

    Raises:
        DataError: its examples have another shape, or its labels stand for other classes.
    """
    if test.inputs != train.inputs:
        raise DataError(
            f"{test.source} has {test.inputs}, but {train.source}, which is trained on, has "
            f"{train.inputs}. Give a test set with examples of the same type and shape."
        )
    if train.rows.targets is not None or test.rows.targets is not None:
        _require_same_targets(test, train)
        return
    theirs, ours = test.class_names, train.class_names
    # A test set without names may lack the last classes: it counts those that it has.
    if theirs != ours[: len(theirs)] and len(theirs) != len(ours):
        raise DataError(
            f"{test.source} has {len(theirs)} classes, but {train.source}, which is trained on, "
            f"has {len(ours)}. Give a test set of the same classes."
        )
    for label, name in enumerate(theirs):
        if name in ours and ours[label] != name:
            raise DataError(
                f"class {name!r} has label {label} in {test.source}, but {ours.index(name)} in "
                f"{train.source}, which is trained on. Give a test set with the same labels."
            )


def _require_same_targets(test: Dataset, train: Dataset) -> None:
    """The strata may differ: they are each data set's own."""
    found = [(dataset.target.kind, *_target_names(dataset)) for dataset in (test, train)]
    if found[0] != found[1]:
        said = [
            f"{dataset.source} is {dataset.target.kind.words} data with {dataset.target}"
            for dataset in (test, train)
        ]
        raise DataError(
            f"{said[0]}, but {said[1]}, which is trained on. Give a test set with the same "
            "targets, under the same names."
        )


def _target_names(dataset: Dataset) -> tuple[str, ...]:
    return () if dataset.rows.targets is None else dataset.rows.targets.names


def _listed(subset: Subset, dataset: Dataset, *, weighted: bool) -> tuple[Tensor, Tensor]:
    """A subset's examples, int64 N, and their weights, float32 N."""
    require_for(subset, dataset)
    ids_N = torch.as_tensor(subset.indices.copy())
    weights_N = torch.as_tensor(subset.weights.copy()) if weighted else torch.ones(len(ids_N))
    # Their mean is 1, but where the subset says that they count as they are.
    if not subset.manifest.get(ABSOLUTE_WEIGHTS):
        weights_N = normalized_weights(weights_N)
    return ids_N, weights_N


def require_for(subset: Subset, dataset: Dataset) -> None:
    """Check that a subset can be trained on.

    Raises:
        SubsetError: it is empty, or another data set's.
    """
    if not len(subset):
        raise SubsetError("the subset is empty, so there is nothing to train on. Get another.")
    own = dataset.fingerprint_like(subset.fingerprint)
    if subset.fingerprint != own:
        raise SubsetError(
            f"the subset belongs to data with fingerprint {subset.fingerprint}, but "
            f"{dataset.source} has {own}. Give the data that it was chosen from."
        )
