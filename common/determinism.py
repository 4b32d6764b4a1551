"""Determinism: seeds by purpose, and kernels that give the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Kernels: what a result depends on besides its inputs, pinned for the time of a block.
#
# Measured: with contiguous activations a convolution's forward pass gives the same bits
# with any number of threads, its backward pass does not, nor does a batch norm over
# channels-last activations, nor MobileNet's forward pass. On CUDA, cuDNN may choose among kernels
# that sum in any order, and round their inputs to TF32. Layers such as dropout
# draw from the process's global generators.


@contextmanager
def pinned_kernels(cpu_threads: int | None = None) -> Iterator[None]:
    """Compute with this many threads, deterministic cuDNN kernels and full float32.

    The previous settings come back at the end; nothing else is changed.

    Args:
        cpu_threads: for operations on the CPU, at least 1; None keeps their number, for
            a caller that has pinned it or whose kernels do not depend on it.
    """
    previous = torch.get_num_threads()
    torch.set_num_threads(previous if cpu_threads is None else cpu_threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def tried_kernels() -> Iterator[None]:
    """On CUDA, let cuDNN try its kernels on the first inputs of a shape, and take the fastest.

    For training at full speed, where no two runs have to come to the same bits.
    """
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=True, allow_tf32=torch.backends.cudnn.allow_tf32
    ):
        yield


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Let layers that draw from global generators draw from a seed, on the CPU and `device`.

    The generators' states come back at the end; other devices' are not touched.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


# Seeds: every random draw comes from the run's seed, a purpose, and an index.
#
# Nothing draws from a global generator, so a retried or moved assignment gives
# the same learner and one seed gives one subset, whatever happened between.


def derive_seed(run_seed: int, purpose: str, index: int = 0) -> int:
    """A seed in [0, 2**63) that depends on all three arguments and nothing else.

    The first 8 bytes of SHA-256 over the text "run_seed/purpose/index",
    little-endian, without the top bit.
    """
    digest = hashlib.sha256(f"{run_seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def derive_generator(run_seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator seeded with `derive_seed`: draws are the same on every device."""
    return torch.Generator().manual_seed(derive_seed(run_seed, purpose, index))
