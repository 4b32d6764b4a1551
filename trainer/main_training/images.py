"""Training images: resident on the device where they fit, else decoded ahead.

Resident, the pixels travel once, as bytes, and every epoch after that costs an index.
Otherwise a thread decodes the next batch while the present one is trained on.

Shapes: N examples of the subset, B of a batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from lipt.common.data import Dataset

# On the CPU, where a data set in memory would only be copied; and the share of what is
# free on an accelerator.
_MAX_CPU_BYTES = 4 * 1024**3
_MAX_DEVICE_SHARE = 0.5
_BATCHES_AHEAD = 2


class TrainingImages:
    """The images of some examples, batch by batch, as uint8 on the device.

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
        size_bytes = len(ids_N) * math.prod(dataset.image_shape)
        keep = size_bytes <= _room_bytes(device) if resident is None else resident
        self._images_NCHW = dataset.images(ids_N).to(device) if keep else None

    @property
    def resident(self) -> bool:
        """Whether all images lie on the device."""
        return self._images_NCHW is not None

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of each batch of positions, in order; uint8, B x C x H x W."""
        if self._images_NCHW is not None:
            for positions_B in positions:
                yield self._images_NCHW[positions_B.to(self._device, non_blocking=True)]
            return
        with ThreadPoolExecutor(1, thread_name_prefix="decode") as executor:
            ahead: deque[Future[Tensor]] = deque()
            try:
                for positions_B in positions:
                    ahead.append(executor.submit(self._decode, positions_B))
                    if len(ahead) > _BATCHES_AHEAD:
                        yield ahead.popleft().result().to(self._device, non_blocking=True)
                while ahead:
                    yield ahead.popleft().result().to(self._device, non_blocking=True)
            finally:
                for future in ahead:
                    future.cancel()

    def _decode(self, positions_B: Tensor) -> Tensor:
        images_BCHW = self._dataset.images(self._ids_N[positions_B])
        return images_BCHW.pin_memory() if self._device.type == "cuda" else images_BCHW


def _room_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _MAX_CPU_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(free_bytes * _MAX_DEVICE_SHARE)
