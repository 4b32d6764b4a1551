"""Arriving results: what a device computes of each batch, on the CPU, without waiting for it.

On CUDA a batch's results travel to page-locked memory behind its kernels, and are handed on
when the next batch is on its way: the device always has work. On a CPU they are there at once.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def arriving(
    computed: Iterable[tuple[slice, tuple[Tensor, ...]]],
) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """The same rows and results in the same order, results on the CPU.

    Args:
        computed: of each batch its rows and, at least one, results, all on one device; asked for
            the next batch before the last one's results are handed on where that is CUDA.
    """
    last: _Travelling | None = None
    for rows, results in computed:
        if results[0].device.type != "cuda":
            yield rows, tuple(result.cpu() for result in results)
            continue
        begun = _Travelling(rows, results)
        if last is not None:
            yield last.arrived()
        last = begun
    if last is not None:
        yield last.arrived()


class _Travelling:
    """A batch's results on their way from CUDA to the CPU."""

    def __init__(self, rows: slice, results: tuple[Tensor, ...]) -> None:
        self._rows = rows
        self._results = tuple(
            torch.empty(result.shape, dtype=result.dtype, pin_memory=True).copy_(
                result, non_blocking=True
            )
            for result in results
        )
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(results[0].device))

    def arrived(self) -> tuple[slice, tuple[Tensor, ...]]:
        """They, once they are there."""
        self._done.synchronize()
        return self._rows, self._results
