"""Images per second of `fit` on a GPU, and which share of the card's bfloat16 peak they are.

    python -m benchmarks.gpu_training [--models resnet18 wrn28_10] [--processes 1 2 4]
    python -m benchmarks.gpu_training --tiny --device cpu

Several processes train at once on the one card, each its own model: their rates add up. The first
steps (compilation, cuDNN's trials) are not counted, and all processes begin to count together.
FLOPs are those of a forward and a backward pass on one image, by torch's own counter, two for a
multiplication with its addition. Pixels are made up: no speed depends on them.

The anchors are published, not measured here: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a
Single GPU" (arXiv:2404.00498). They are whole trainings by models and recipes of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from lipt.common.process.devices import device_name, resolve_device
from lipt.data.dataset import Dataset
from lipt.models.registry import build_model
from lipt.trainer.main_training import Recipe, Schedule, fit
from tests.in_memory import in_memory

# Dense bfloat16 peaks in TFLOP/s, as their maker publishes them; matched from the first on.
PEAKS = {
    "A100": 312.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H200": 989.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
}
ANCHORS = "published on an A100 (arXiv:2404.00498): 94% in 2.6 s, 96% in 27 s"
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Plan:
    """How one process trains."""

    model: str
    device: str
    num_images: int
    batch_size: int
    skipped: int
    counted: int
    compile: bool
    cuda_graphs: bool


class Meter:
    """Called after every step; measures from the moment at which all processes are warm."""

    def __init__(self, plan: Plan, warm: Barrier) -> None:
        self._plan, self._warm = plan, warm
        self._began = self.images_per_second = 0.0

    def __call__(self, step: int, _num_steps: int) -> None:
        plan = self._plan
        if step == plan.skipped:
            wait_for(plan.device)
            self._warm.wait(_PATIENCE_SECONDS)
            self._began = time.perf_counter()
        elif step == plan.skipped + plan.counted:
            wait_for(plan.device)
            seconds = time.perf_counter() - self._began
            self.images_per_second = plan.counted * plan.batch_size / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Images per second of main training on a GPU.")
    parser.add_argument("--models", nargs="+", default=["resnet18", "wrn28_10"])
    parser.add_argument("--processes", nargs="+", type=int, default=[1], help="at once on the card")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="counted ones (default 400)")
    parser.add_argument("--plain", action="store_true", help="without torch.compile")
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="resnet8, two steps: does it run?")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    name = device_name(device)
    batch_size = 8 if arguments.tiny else arguments.batch_size
    table = Table("model", "processes", "images/s in all", "TFLOP/s", "of the card's peak")
    table.title = f"`fit` on {name}, torch {torch.__version__}, batch {batch_size}"
    table.caption = ANCHORS
    for model in ["resnet8"] if arguments.tiny else arguments.models:
        flops = flops_per_image(model)
        plan = Plan(
            model=model,
            device=str(device),
            num_images=(4 if arguments.tiny else 100) * batch_size,
            batch_size=batch_size,
            skipped=1 if arguments.tiny else 20,
            counted=2 if arguments.tiny else arguments.steps,
            compile=not (arguments.plain or arguments.tiny),
            cuda_graphs=arguments.cuda_graphs,
        )
        for num_processes in arguments.processes:
            rate = sum(rates(plan, num_processes))
            table.add_row(model, str(num_processes), *figures(rate, flops, name))
    Console().print(table)


def figures(images_per_second: float, flops: int, name: str) -> tuple[str, str, str]:
    """Images/s, TFLOP/s and the share of the peak, where the card's is known."""
    teraflops, peak = images_per_second * flops / 1e12, peak_of(name)
    share = "" if peak is None else f"{teraflops / peak:.0%}"
    return f"{images_per_second:,.0f}", f"{teraflops:.2f}", share


def peak_of(name: str) -> float | None:
    """The card's dense bfloat16 peak in TFLOP/s; None where it is not known."""
    words = f"{name.replace('-', ' ')} "
    return next((peak for card, peak in PEAKS.items() if f"{card} " in words), None)


def flops_per_image(model: str) -> int:
    """Of a forward and a backward pass on a 32x32 image; the optimizer's are left out."""
    dataset = made_up(2)
    built = build_model(model, num_classes=10, inputs=dataset.inputs, seed=0)
    with FlopCounterMode(display=False) as counter:
        loss = functional.cross_entropy(built(torch.rand(2, 3, 32, 32)), dataset.labels_N)
        torch.autograd.backward(loss)
    return int(counter.get_total_flops()) // 2


def rates(plan: Plan, num_processes: int) -> list[float]:
    """Each process's images/s, all of them training at once."""
    context = multiprocessing.get_context("spawn")
    warm, found = context.Barrier(num_processes), context.Queue()
    arguments = (asdict(plan), warm, found)
    processes = [context.Process(target=train, args=arguments) for _ in range(num_processes)]
    for process in processes:
        process.start()
    try:
        return [_next(found, processes) for _ in processes]
    finally:
        for process in processes:
            process.join(60)
            process.terminate()


def _next(found: Queue[float], processes: Sequence[BaseProcess]) -> float:
    """The next rate, unless a process has failed."""
    while True:
        try:
            return found.get(timeout=1)
        except queue.Empty:
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed:
                raise SystemExit(f"a training ended with status {failed[0]}") from None


def train(plan: dict[str, Any], warm: Barrier, found: Queue[float]) -> None:
    """One process's part."""
    own = Plan(**plan)
    meter = Meter(own, warm)
    recipe = Recipe(
        steps=own.skipped + own.counted,
        batch_size=own.batch_size,
        drop_last=True,
        compile=own.compile,
        cuda_graphs=own.cuda_graphs,
    )
    fit(
        own.model,
        made_up(own.num_images),
        recipe=recipe,
        schedule=Schedule(test_at=(), subset_at=None),
        device=own.device,
        on_step=meter,
    )
    found.put(meter.images_per_second)


def made_up(num_images: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    shape = (num_images, 3, 32, 32)
    pixels_NCHW = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    names = tuple(map(str, range(10)))
    return in_memory("made-up images", names, torch.arange(num_images) % 10, "gpu", pixels_NCHW)


def wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(torch.device(device))


if __name__ == "__main__":
    main()
