"""Determinism: seeds by purpose, and bitwise reproducible kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Measured: convolutions' backward pass, batch norms over channels-last activations and MobileNet's
# forward pass depend on the number of threads. cuDNN may sum in any order, or round to TF32. Layers
# such as dropout use the global generators.


@contextmanager
def pinned_kernels(cpu_threads: int | None = None) -> Iterator[None]:
    """Compute with `cpu_threads`, deterministic cuDNN kernels and full float32."""
    _keep_freed_memory()
    previous = torch.get_num_threads()
    torch.set_num_threads(previous if cpu_threads is None else cpu_threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_num_threads(previous)


def _keep_freed_memory() -> None:
    """Let glibc keep up to 62 MiB of freed memory instead of returning it at once.

    What it keeps is twice the largest block freed so far, of at most 32 MiB. Otherwise each batch
    may fault in all pages of its activations again: about a tenth of a learner's CPU time.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


@contextmanager
def fastest_kernels() -> Iterator[None]:
    """Let cuDNN choose its fastest kernels; bits may differ between runs."""
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=True, allow_tf32=torch.backends.cudnn.allow_tf32
    ):
        yield


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of the CPU and `device` in the block."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
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
