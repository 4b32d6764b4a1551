"""Device check of `lipt doctor`: what there is to compute on, without importing torch if it can.

Importing torch and torchvision takes seconds. Where no CUDA device can be had, and torchvision's
own requirement says that the two fit, there is nothing that the import would tell.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lipt.trainer.cli.doctor.checks import Check

_REMEDY = "Install a pair that fits: pip install --force-reinstall torch torchvision"
# What NVIDIA's driver makes, on Linux and under Windows' subsystem for it.
_TRACES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def device_check(versions: Mapping[str, str], *, thorough: bool) -> Check:
    """What learners and main training can be computed on here.

    Args:
        versions: of what is installed, by name.
        thorough: whether torch is imported in any case.
    """
    known = thorough or may_have_cuda(versions.get("torch", ""), sys.platform)
    if known or not fits(versions, _requirements("torchvision")):
        return _imported()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    detail = f"cpu with {cores} cores; torch was not imported, which --thorough does"
    return Check("device", True, detail)


def may_have_cuda(torch: str, platform: str, traces: Sequence[str] = _TRACES) -> bool:
    """Whether there may be a CUDA device that this torch can use.

    Args:
        torch: its version; "2.15.0+cpu" is one that can use none.
        platform: as `sys.platform` has it.
        traces: files that are there where a driver is.
    """
    if torch.endswith("+cpu") or platform == "darwin":
        return False
    return platform != "linux" or any(Path(trace).exists() for trace in traces)


def fits(versions: Mapping[str, str], requirements: Sequence[str]) -> bool:
    """Whether torch is one that torchvision asks for; False where that cannot be told.

    Args:
        versions: of what is installed, by name.
        requirements: torchvision's, as its metadata has them.
    """
    found = re.match(r"\d+(\.\d+)*", versions.get("torch", ""))
    wanted = [
        re.fullmatch(r"torch\s*\(?(==|>=)\s*(\d+(?:\.\d+)*)\)?", text) for text in requirements
    ]
    for match in filter(None, wanted):
        torch, asked = (_numbers(text) for text in (found[0] if found else "0", match[2]))
        return torch == asked if match[1] == "==" else torch >= asked
    return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _requirements(package: str) -> Sequence[str]:
    try:
        return importlib.metadata.requires(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def _imported() -> Check:
    try:
        import torch
        import torchvision  # noqa: F401 - a torch that does not fit it breaks here
    except (ImportError, OSError, RuntimeError) as error:
        detail = f"torch or torchvision cannot be imported: {error}"
        return Check("device", False, detail, _REMEDY)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("device", True, ", ".join(names))
    return Check("device", True, f"cpu with {torch.get_num_threads()} threads")
