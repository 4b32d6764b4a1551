"""Images per second of main training: `fit` against the loop that most people write.

The plain loop is torch's DataLoader over image files in memory, decoded by PIL and augmented
by torchvision, with the faster of no worker and one worker per core; `fit` has decoded them
once, before. Same model, batch, precision and steps, in turns; each side's first step is not
counted.

    python benchmarks/main_training.py [--models resnet8] [--rounds 3] [--device cpu]

Images are those of cifar10-jpeg/test.parquet in $LIPT_DATA or ../shared/data.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from lipt.common.process.devices import resolve_device
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec
from lipt.data.loading import open_dataset
from lipt.models.registry import build_model
from lipt.trainer.main_training import Recipe, Schedule, fit
from tests.in_memory import in_memory

BATCH_SIZE = 256
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

# Counted steps on a CPU and on CUDA, after one that is not.
STEPS = {"resnet8": (8, 200), "resnet18": (1, 100)}


@dataclass(frozen=True)
class Side:
    """One way to train: called with a model's name, steps and device, it gives images/s."""

    name: str
    train: Callable[[str, int, torch.device], float]


class Timer:
    """Called after every optimizer step; images per second of all steps but the first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = self.images_per_second = 0.0

    def __call__(self, step: int, num_steps: int) -> None:
        if step not in (1, num_steps):
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if step == 1:
            self._started = now
        else:
            self.images_per_second = (num_steps - 1) * BATCH_SIZE / (now - self._started)


class Files(TorchDataset[tuple[Tensor, int]]):
    """Image files in memory, as a map-style data set with torchvision's transforms."""

    def __init__(self, files: Sequence[bytes], labels: Sequence[int]) -> None:
        self._files, self._labels = files, labels
        self._transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self._files[index])).convert("RGB")
        inputs_CHW: Tensor = self._transform(image)  # type: ignore[assignment]
        return inputs_CHW, self._labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description="Images per second of main training.")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default 3)")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg"
    dataset, files = images(folder / "test.parquet", 4 * BATCH_SIZE)
    labels = dataset.labels_N.tolist()
    workers = (0, os.cpu_count() or 1)
    sides = [Side("fit", partial(with_fit, dataset))]
    for num_workers in workers:
        name = f"DataLoader, {num_workers} workers"
        sides.append(Side(name, partial(with_loader, Files(files, labels), num_workers)))
    table = Table("model", *(side.name for side in sides), "ratio to the faster loader")
    where = f"{device.type}, {torch.get_num_threads()} threads"
    table.title = f"images per second, {where}, {dataset.source}, batch {BATCH_SIZE}"
    table.caption = f"median of {arguments.rounds} turns"
    for model in arguments.models:
        steps = 1 + STEPS[model][device.type == "cuda"]
        turns = [
            [side.train(model, steps, device) for side in sides] for _ in range(arguments.rounds)
        ]
        ours, *theirs = (statistics.median(rates) for rates in zip(*turns, strict=True))
        rates = (f"{rate:,.0f}" for rate in (ours, *theirs))
        table.add_row(model, *rates, f"{ours / max(theirs):.2f}")
    Console().print(table)


def with_fit(dataset: Dataset, model: str, steps: int, device: torch.device) -> float:
    timer = Timer(device)
    fit(
        model,
        dataset,
        recipe=Recipe(steps=steps, batch_size=BATCH_SIZE),
        schedule=Schedule(test_at=(), subset_at=()),
        device=str(device),
        on_step=timer,
    )
    return timer.images_per_second


def with_loader(
    files: Files, num_workers: int, spec: str, steps: int, device: torch.device
) -> float:
    on_cuda = device.type == "cuda"
    loader = DataLoader(
        files,
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=on_cuda,
    )
    model: nn.Module = build_model(spec, num_classes=10, inputs=ImageSpec(3, 32, 32), seed=0)
    layout = torch.channels_last if on_cuda else torch.contiguous_format
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_of = nn.CrossEntropyLoss()
    timer = Timer(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about more workers than cores
        for step, (inputs, labels) in enumerate(endlessly(loader), 1):
            inputs_BCHW = inputs.to(device, non_blocking=True).contiguous(memory_format=layout)
            labels_B = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_cuda):
                loss = loss_of(model(inputs_BCHW), labels_B)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            timer(step, steps)
            if step == steps:
                return timer.images_per_second
    raise AssertionError("a loader of a full batch never ends")


def endlessly(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def images(path: Path, count: int) -> tuple[Dataset, list[bytes]]:
    """Pixels for `fit`, and the same images as files."""
    encoded, ids_N = open_dataset(f"parquet:{path}", memory_budget_bytes=0), torch.arange(count)
    names, labels_N = tuple(map(str, range(10))), encoded.labels_N[:count]
    pixels = in_memory("cifar10-jpeg", names, labels_N, "benchmark", encoded.images(ids_N))
    return pixels, [encoded.raw_bytes(row) for row in range(count)]


if __name__ == "__main__":
    main()
