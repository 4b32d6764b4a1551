"""What long lists of examples take as files: bytes, seconds to pack and unpack, and memory.

Each list is packed in one process and unpacked in another, with the digest computed as the trainer
does. Peaks of memory are the kernel's (VmHWM), without what the process took before.
Run: python benchmarks/serving_subsets.py [--huge]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lipt.common.subsets import Examples, pack, subset_digest, unpack


@dataclass(frozen=True)
class Case:
    """A list: so many examples, every n-th in the mean, with weights or without."""

    name: str
    num_examples: int
    one_of: int
    weighted: bool = False


CASES = (
    Case("1.3 M of 13 M", 1_300_000, 10),
    Case("1.3 M of 13 M, with weights", 1_300_000, 10, weighted=True),
    Case("1.3 M, all of them", 1_300_000, 1),
)
HUGE = Case("130 M of 1.3 G", 130_000_000, 10)


def write(case: Case, path: Path) -> tuple[float, int]:
    """Pack a random list into a file; seconds and the peak of memory."""
    draw, count = np.random.default_rng(0), case.num_examples
    indices = np.cumsum(draw.geometric(1 / case.one_of, count)) - 1
    weights = draw.random(count, np.float32) if case.weighted else np.ones(count, np.float32)
    return measured(lambda: path.write_bytes(pack(Examples(indices, weights))))


def read(case: Case, path: Path) -> tuple[float, int]:
    """Unpack a file and compute its digest; seconds and the peak of memory."""

    def act() -> None:
        examples = unpack(path.read_bytes(), case.num_examples)
        subset_digest(examples.indices_K, examples.weights_K)

    return measured(act)


def measured(act: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and by how much the peak of memory rose."""
    before, started = peak_bytes(), time.perf_counter()
    act()
    return time.perf_counter() - started, peak_bytes() - before


def peak_bytes() -> int:
    """The most memory that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell the peak of memory")


def measure(case: Case) -> None:
    """Print a row."""
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        path, found = Path(folder) / "subset", []
        for act in (write, read):
            with ProcessPoolExecutor(1, mp_context=spawn) as process:
                found.append(process.submit(act, case, path).result())
        size = path.stat().st_size
    (packing, ours), (unpacking, theirs) = found
    print(
        f"{case.name:<28} {size / 1e6:>8.2f} MB {8 * size / case.num_examples:>5.1f} bits/id "
        f"{packing:>6.2f} s {ours / 1e6:>6.0f} MB {unpacking:>6.2f} s {theirs / 1e6:>6.0f} MB "
        f"({12 * case.num_examples / 1e6:.0f} MB are the arrays)",
        flush=True,
    )


def main() -> None:
    """Print a row for each list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--huge", action="store_true", help="130 M examples alone")
    for case in [HUGE] if parser.parse_args().huge else CASES:
        measure(case)


if __name__ == "__main__":
    main()
