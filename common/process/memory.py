"""Memory of a process: how much it may take, and how to tell that it was not enough.

Measured on Linux with torch's CUDA build: merely imported it reserves 2.3 GB of addresses more than
it uses, so a limit on addresses (RLIMIT_AS) says little. What may be written to (RLIMIT_DATA)
follows what is in use: 110 MB above it, and 8 MB for each thread's stack. What is mapped from
files is not counted. The driver's mappings are, so a process that uses a CUDA device is not
limited in this way.
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
