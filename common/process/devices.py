"""Devices: the one to compute on, and the versions that a result depends on."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import torch

from lipt.common.errors import ConfigError

_PACKAGES = ("lipt", "torch", "torchvision")
# As the contract takes of a device and a version.
_MAX_NAME_CHARACTERS = 80


def resolve_device(spec: str) -> torch.device:
    """The device that `--device` names."""
    kind, colon, index = spec.strip().lower().partition(":")
    if colon and not (kind == "cuda" and index.isascii() and index.isdecimal()):
        raise _not_usable(spec, "is not a device")
    match kind:
        case "auto":
            return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        case "cpu":
            return torch.device("cpu")
        case "cuda":
            if not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count():
                raise _not_usable(spec, "is not on this machine")
            return torch.device("cuda", int(index or 0))
        case _:
            raise _not_usable(spec, "is not a device")


def _not_usable(spec: str, what: str) -> ConfigError:
    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(num_cuda)]
    present = ", ".join(["cpu", *cuda])
    return ConfigError(
        f"device {spec!r} {what}: this machine has {present}. "
        "Choose one of these, or auto (CUDA if there is any, else the CPU)."
    )


def device_name(device: torch.device) -> str:
    """What people call the device: "cpu", or a CUDA device's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def processor_name() -> str:
    """What this machine's processor is called, which the sums of a CPU's kernels depend on."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:_MAX_NAME_CHARACTERS]
    return (platform.processor() or platform.machine())[:_MAX_NAME_CHARACTERS]


def versions_on(device: torch.device) -> dict[str, str]:
    """All that a result depends on besides its device's name: versions, and a CPU's processor."""
    processor = {"cpu": processor_name()} if device.type == "cpu" else {}
    return versions() | processor


def kind_of(device: str, versions: Mapping[str, str]) -> str:
    """What computes the same bits: a device's name, the processor, and PyTorch's version."""
    processor, torch = versions.get("cpu", ""), versions.get("torch", "")
    return f"{device}{f' ({processor})' if processor else ''}{f', torch {torch}' if torch else ''}"


def versions() -> dict[str, str]:
    """Versions of python, lipt, torch and torchvision, read from metadata without imports."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
