"""Images per second of the signals' pass over the data, against the forward pass alone.

Three sides in turns, of the same examples in the same batches, on as many threads as the
coordinator uses by default: the forward loop over inputs that are ready (the ceiling), the pass as
it was, which read each batch before it was computed, and the pass as it is. Data are pixels in
memory, and image files of 224 x 224 pixels that a network for 32 x 32 is given, so that decoding
takes longer than computing. CPU seconds are beside seconds: other jobs take cores, too.

    python benchmarks/signals_pass.py [--examples 4096] [--rounds 5] [--device cpu]

Images are those of $LIPT_DATA/cifar10-jpeg (or ../shared/data), else made up.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import nn

from lipt.common.config.run_config import RunConfig
from lipt.common.data import open_dataset
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec, Inputs
from lipt.common.models import build_model, forward_with_features, lay_out
from lipt.common.process.devices import resolve_device
from lipt.common.process.machine import wait_passively
from lipt.common.signals.passes import Batches, Read
from lipt.core.evaluation import batch_size_for
from lipt.core.signals.compute import compute_signals

MODEL = "resnet8"
SIZE, FILE_SIZE = 32, 224
FORMAT = ImageFormat(3, SIZE, SIZE, mean=(0.5,) * 3, std=(0.25,) * 3)


class InTurn(Batches):
    """The batches as they were: each is read when it is its turn."""

    def reading(self, blocks: Iterable[slice]) -> AbstractContextManager[Iterator[Read]]:
        ids_N, targets_N = self.ids_N, self.dataset.targets_N
        return nullcontext(
            Read(rows, self.dataset.examples(ids_N[rows]), targets_N[ids_N[rows]])
            for rows in blocks
        )


@dataclass(frozen=True)
class Taken:
    """What a turn took."""

    seconds: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Images per second of the signals' pass.")
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    if "OMP_WAIT_POLICY" not in os.environ:
        # As in the coordinator; torch has looked at it already, and spinning threads would hold
        # the core that decodes.
        wait_passively()
        os.execv(sys.executable, [sys.executable, *sys.argv])
    device, threads = resolve_device(given.device), RunConfig().evaluation_threads
    table = Table("data", "side", "images/s", "to the forward loop", "to one by one", "CPU s")
    table.title = f"{MODEL}, {given.examples} images, {device.type}, {threads} threads"
    table.caption = f"medians of {given.rounds} turns; ratios are medians of each turn's own"
    with tempfile.TemporaryDirectory() as folder, pinned_kernels(threads):
        for name, dataset in data(given.examples, Path(folder)).items():
            turns = measure(dataset, device, given.rounds)
            forward, before = turns["forward loop"], turns["one by one"]
            for side, taken in turns.items():
                table.add_row(
                    name,
                    side,
                    f"{given.examples / statistics.median(one.seconds for one in taken):,.0f}",
                    f"{ratio(forward, taken):.2f}",
                    f"{ratio(before, taken):.2f}",
                    f"{statistics.median(one.cpu_seconds for one in taken):.2f}",
                )
    Console().print(table)


def ratio(theirs: list[Taken], ours: list[Taken]) -> float:
    """How many times as fast; of the turns that were taken one after the other."""
    return statistics.median(a.seconds / b.seconds for a, b in zip(theirs, ours, strict=True))


def measure(dataset: Dataset, device: torch.device, rounds: int) -> dict[str, list[Taken]]:
    model = build_model(MODEL, num_classes=10, inputs=dataset.inputs, seed=0)
    model = lay_out(model, MODEL, device).eval()
    size = batch_size_for(dataset.inputs, device)
    now, before = (
        kind(dataset, FORMAT, device, size, lambda *_: None) for kind in (Batches, InTurn)
    )
    ready = [inputs_B for _, inputs_B, _ in now]
    sides: dict[str, Callable[[], object]] = {
        "forward loop": lambda: forward(model, ready),
        "one by one": lambda: compute_signals(model, before),
        "read ahead": lambda: compute_signals(model, now),
    }
    forward(model, ready)
    turns: dict[str, list[Taken]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            side()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - started
            turns[name].append(Taken(seconds, time.process_time() - cpu_started))
    return turns


@torch.inference_mode()
def forward(model: nn.Module, ready: list[Inputs]) -> None:
    for inputs_B in ready:
        forward_with_features(model, inputs_B)


def data(number: int, folder: Path) -> dict[str, Dataset]:
    """The same images in memory, and as files."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg" / "test.parquet"
    ids_N = torch.arange(number)
    if path.is_file():
        source = open_dataset(f"parquet:{path}", memory_budget_bytes=0)
        pixels_NCHW, labels_N = source.images(ids_N), source.labels_N[ids_N]
    else:
        generator = torch.Generator().manual_seed(0)
        shape = (number, 3, SIZE, SIZE)
        pixels_NCHW = torch.randint(256, shape, generator=generator).to(torch.uint8)
        labels_N = ids_N % 10
    for row, label in enumerate(labels_N.tolist()):
        image = Image.fromarray(pixels_NCHW[row].permute(1, 2, 0).numpy())
        file = io.BytesIO()
        image.resize((FILE_SIZE, FILE_SIZE), Image.Resampling.BICUBIC).save(file, "JPEG")
        (folder / str(label)).mkdir(exist_ok=True)
        (folder / str(label) / f"{row:06}.jpg").write_bytes(file.getvalue())
    names = tuple(map(str, range(10)))
    files = open_dataset(f"imagefolder:{folder}", image_size=SIZE, memory_budget_bytes=0)
    assert files.inputs == ImageSpec(3, SIZE, SIZE)
    return {
        "pixels in memory": in_memory("pixels", names, labels_N, "benchmark", pixels_NCHW),
        f"files, {FILE_SIZE} x {FILE_SIZE}": files,
    }


if __name__ == "__main__":
    main()
