"""Determinism: seeds by purpose, and generators seeded by them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from lipt.common.computation import computation


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of the CPU and `device` in a computation.

    Layers such as dropout draw from them.
    """
    on_cuda = device.type == "cuda"
    with computation(), torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def derive_seed(run_seed: int, purpose: str, index: int = 0) -> int:
    """A seed in [0, 2**63) that depends only on the three arguments.

    The first 8 bytes of SHA-256 over the text "run_seed/purpose/index", little-endian, without the
    top bit.
    """
    digest = hashlib.sha256(f"{run_seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def derive_generator(run_seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator seeded by `derive_seed`: draws are the same on every device."""
    return torch.Generator().manual_seed(derive_seed(run_seed, purpose, index))


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the global generators of torch, NumPy and `random`, which a user's code may use."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if used else ()
    of_python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002 - of the user's code
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
