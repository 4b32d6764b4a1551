"""Compute devices, versions that results depend on, and process memory.

RLIMIT_DATA follows memory in use within 110 MB. RLIMIT_AS does not: torch's CUDA build reserves 2.3
GB of unused addresses. RLIMIT_DATA counts a GPU driver's mappings, so it is not used with CUDA.
"""

from __future__ import annotations

import errno
import platform
import re
import resource
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from lipt.common.errors import ConfigError

_CUDA = re.compile(r"cuda(?::([0-9]+))?")
_PACKAGES = ("lipt", "torch", "torchvision")
# The protocol's limit.
_MAX_NAME_CHARACTERS = 80
# Messages of C++ and torch in place of a MemoryError.
_WORDS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "can't start new thread")


def resolve_device(spec: str) -> torch.device:
    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = spec.strip().lower()
    if name == "auto":
        name = "cuda" if num_cuda else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    match = _CUDA.fullmatch(name)
    index = int(match[1] or 0) if match is not None else num_cuda
    if index < num_cuda:
        return torch.device("cuda", index)
    cuda = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(num_cuda)]
    raise ConfigError(
        f"this machine has no device {spec!r}, but {', '.join(['cpu', *cuda])}. Choose one of "
        "these, or auto (CUDA if there is any, else the CPU)."
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def processor_name() -> str:
    """The processor's name: CPU kernels' sums depend on it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:_MAX_NAME_CHARACTERS]
    return (platform.processor() or platform.machine())[:_MAX_NAME_CHARACTERS]


def versions_on(device: torch.device) -> dict[str, str]:
    """The versions that a result depends on; on a CPU, also the processor."""
    processor = {"cpu": processor_name()} if device.type == "cpu" else {}
    return versions() | processor


def kind_of(device: str, versions: Mapping[str, str]) -> str:
    """A name shared by devices with bitwise equal results."""
    processor, torch = versions.get("cpu", ""), versions.get("torch", "")
    return f"{device}{f' ({processor})' if processor else ''}{f', torch {torch}' if torch else ''}"


def versions() -> dict[str, str]:
    """Versions of python, lipt, torch and torchvision, read from metadata without imports."""
    installed = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version()} | installed


def limit_memory(num_bytes: int) -> None:
    """Let allocations beyond `num_bytes` fail; keeps a lower limit."""
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    if hardest != resource.RLIM_INFINITY:
        num_bytes = min(num_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def prefer_as_oom_victim() -> None:
    """Make the system kill this process first when memory runs out."""
    with suppress(OSError):
        # In -1000..1000.
        Path("/proc/self/oom_score_adj").write_text("500")


def is_out_of_memory(error: BaseException) -> bool:
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
