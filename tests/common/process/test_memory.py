"""Memory that cannot be had; what is asked for is never written to, so it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.common.process.memory import is_out_of_memory

# A process of its own, because a limit cannot be taken back.
LIMITED = """
import torch
from lipt.common.process.memory import go_first_without_memory, is_out_of_memory, limit_memory

go_first_without_memory()
print(open("/proc/self/oom_score_adj").read())
limit_memory(2 * 2**30)
limit_memory(4 * 2**30)
torch.empty(2**29, dtype=torch.uint8)
for take in (lambda: torch.empty(2**31, dtype=torch.uint8), lambda: bytearray(2**31)):
    try:
        take()
    except Exception as error:
        print(is_out_of_memory(error), type(error).__name__)
"""


def test_what_is_beyond_the_limit_is_refused_and_the_process_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["500", "True", "RuntimeError", "True", "MemoryError"]


def test_an_error_is_known_by_what_it_was_raised_from() -> None:
    refusal = ConfigError("the model fails.")
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**62, dtype=torch.uint8)
    refusal.__cause__ = raised.value
    assert is_out_of_memory(refusal)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (ConfigError("not enough memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory
