"""Training images, or other examples: resident on the device where they fit, else read ahead.

Resident, they travel once, as they are stored, and every epoch after that costs an index.
Otherwise a thread decodes the next batch while the present one is trained on.

Shapes: N examples of the subset, B of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.parallel import reading_ahead
from lipt.common.inputs.stored import Stored, pinned, rows_of, stored_on

# On the CPU, where a data set in memory would only be copied; and the share of what is
# free on an accelerator.
_MAX_CPU_BYTES = 4 * 1024**3
_MAX_DEVICE_SHARE = 0.5


class TrainingImages:
    """Some examples as they are stored, batch by batch, on the device.

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
