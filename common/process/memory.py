"""Memory of a process: its limit, and how to recognise that it was too low.

RLIMIT_AS says little: torch's CUDA build reserves 2.3 GB of unused addresses. RLIMIT_DATA follows
memory in use within 110 MB. It counts a GPU driver's mappings, so it is not used with CUDA.
"""

from __future__ import annotations

import errno
import resource
from contextlib import suppress
from pathlib import Path

import torch

_OWN_SCORE = Path("/proc/self/oom_score_adj")
# Of -1000 to 1000, added to the share of the memory that a process has.
_SCORE = "500"
# What C++ and torch say in place of a MemoryError.
_WORDS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "can't start new thread")


def limit_memory(num_bytes: int) -> None:
    """Refuse this process any memory beyond `num_bytes`: asking for it fails, here and at once.

    A limit that holds already and is lower stays.
    """
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    if hardest != resource.RLIM_INFINITY:
        num_bytes = min(num_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def go_first_without_memory() -> None:
    """Have the system end this process before others when the machine's memory is used up."""
    with suppress(OSError):
        _OWN_SCORE.write_text(_SCORE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that memory could not be had."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return True
        if isinstance(cause, RuntimeError) and any(word in str(cause) for word in _WORDS):
            return True
        cause = cause.__cause__
    return False
