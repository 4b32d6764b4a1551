"""Seeds: every random draw comes from the run's seed, a purpose, and an index.

Nothing draws from a global generator, so a retried or moved assignment gives
the same learner and one seed gives one subset, whatever happened between.
"""

from __future__ import annotations

import hashlib

import torch


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
