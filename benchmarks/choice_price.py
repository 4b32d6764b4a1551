"""The price of `auto`: its choice from theta_p on, in training epochs of the run's model.

One process and one thread time some steps of an epoch, and then the choice by its reported
activities, in CPU seconds. theta_p, of default learners, is made before and not counted.

    python -m benchmarks.choice_price [--only images dirty texts table] [--examples 20000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import lipt
from lipt.core.pipeline import choose, pretrain
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.pretraining import Pretrained
from lipt.trainer.main_training import Recipe, Schedule, fit
from tests.golden.datasets import cifar10_folder
from tests.in_memory import in_memory

# Timed steps follow some that are not.
BATCH_SIZE, WARM_UP_STEPS, STEPS = 64, 5, 30


class Parts:
    """CPU seconds by activity, each up to its last report."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._before = time.process_time()

    def __call__(self, activity: str, _done: int = 1, _total: int = 1) -> None:
        now = time.process_time()
        self.seconds[activity] += now - self._before
        self._before = now


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of a choice, in epochs.")
    parser.add_argument("--only", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--examples", type=int, default=20_000, help="images (default 20,000)")
    parser.add_argument("--tiny", action="store_true", help="a few examples, to try the script")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shown = Table("data", "part", "CPU s", "epochs", title="from theta_p to a tenth by auto")
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            count = 400 if arguments.tiny else COUNTS.get(name, arguments.examples)
            learners = {"num_minibatches": 1, "num_steps": 1} if arguments.tiny else {}
            prices = priced(DATA[name](count, Path(folder)), learners, soft=name == "dirty")
        for part, seconds in prices.items():
            epochs = f"{seconds / prices['training epoch']:.2f}"
            shown.add_row(f"{name}, {count:,}", part, f"{seconds:.1f}", epochs)
        shown.add_section()
    Console(width=110).print(shown)


def priced(data: Dataset, learners: Mapping[str, int], *, soft: bool) -> dict[str, float]:
    """CPU seconds of an epoch, of the parts of the choice, and of all of it.

    soft: whether soft labels are made as well.
    """
    settings = {"evaluation_threads": 1, "learners": learners}
    run, parts = Pretrained(data, run=settings), Parts()
    epoch = epoch_seconds(data, run.model)
    workspace = InMemory(data, torch.device("cpu"), on_progress=parts)
    trained = pretrain(workspace, run.config)
    parts("theta_p")
    parts.seconds.clear()
    chosen = choose(trained, run.resolve("auto", 0.1, soft_labels=soft))
    parts("soft labels" if soft else "selecting")
    print(*chosen.manifest["findings"]["words"], sep="; ")
    return {"training epoch": epoch, **parts.seconds, "choice": sum(parts.seconds.values())}


def epoch_seconds(data: Dataset, model: str) -> float:
    """CPU seconds of an epoch of main training, by some of its steps."""
    ends = list[float]()
    fit(
        model,
        data,
        recipe=Recipe(steps=WARM_UP_STEPS + STEPS, batch_size=BATCH_SIZE),
        schedule=Schedule(test_at=(), subset_at=()),
        device="cpu",
        on_step=lambda *_: ends.append(time.process_time()),
    )
    return (ends[-1] - ends[WARM_UP_STEPS - 1]) / STEPS * len(data) / BATCH_SIZE


def images(count: int, _folder: Path) -> Dataset:
    """Images of $LIPT_DATA/cifar10-jpeg (or ../shared/data) in memory, else random ones."""
    path = cifar10_folder() / "train.parquet"
    if not path.is_file():
        pixels_NCHW = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
        return lipt.open_dataset((pixels_NCHW, torch.arange(count) % 10))
    encoded, generator = open_dataset(f"parquet:{path}"), torch.Generator().manual_seed(0)
    ids_N = torch.randperm(len(encoded), generator=generator)[:count].sort().values
    names, labels_N = encoded.class_names, encoded.labels_N[ids_N]
    return in_memory("cifar10-jpeg", names, labels_N, "images", encoded.images(ids_N))


def dirty(count: int, folder: Path) -> Dataset:
    """The images in gray at 28 x 28 pixels; 36% of the labels are changed to any other class."""
    clean, generator = images(count, folder), torch.Generator().manual_seed(0)
    pixels_NCHW = clean.images(torch.arange(count)).float().mean(dim=1, keepdim=True)
    pixels_NCHW = functional.interpolate(pixels_NCHW, 28, mode="bilinear", antialias=True)
    is_wrong_N = torch.rand(count, generator=generator) < 0.36
    shifts_N = torch.randint(1, 10, (count,), generator=generator).where(is_wrong_N, 0)
    labels_N = (clean.labels_N + shifts_N) % 10
    images_NCHW = pixels_NCHW.round().to(torch.uint8)
    return in_memory("dirty", clean.class_names, labels_N, "dirty", images_NCHW)


def look_alikes(count: int, _folder: Path) -> Dataset:
    """Digits at 28 x 28 pixels, each some ten times, shifted and noisy."""
    digits, generator = open_dataset("digits"), torch.Generator().manual_seed(0)
    rows_N = torch.randint(len(digits), (count,), generator=generator)
    pixels_NCHW = functional.interpolate(digits.images(rows_N).float(), 20, mode="bilinear")
    pixels_NCHW = functional.pad(pixels_NCHW, (4, 4, 4, 4))
    shifts_N2 = torch.randint(-3, 4, (count, 2), generator=generator)
    for image, shift in zip(pixels_NCHW, shifts_N2.tolist(), strict=True):
        image.copy_(image.roll(shift, (1, 2)))
    pixels_NCHW += 12 * torch.randn(pixels_NCHW.shape, generator=generator)
    images_NCHW, labels_N = pixels_NCHW.clamp(0, 255).to(torch.uint8), digits.labels_N[rows_N]
    return in_memory("look-alikes", digits.class_names, labels_N, "look-alikes", images_NCHW)


def texts(count: int, folder: Path) -> Dataset:
    """Sentences of twenty words: one in seven is of the subject, the others are common."""
    random, path = np.random.default_rng(0), folder / "texts.csv"
    subjects_N1 = random.integers(10, size=(count, 1))
    own_NW = random.integers(60, size=(count, 20)) + 60 * subjects_N1
    common_NW = random.integers(600, 1000, size=(count, 20))
    words_NW = np.where(random.random((count, 20)) < 1 / 7, own_NW, common_NW)
    rows = np.hstack([words_NW, subjects_N1]).tolist()
    lines = [f"{' '.join(f'w{word}' for word in words)},{label}" for *words, label in rows]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    return open_dataset(f"csv:{path}?text=text&label=label")


def table(count: int, _folder: Path) -> Dataset:
    """Fifteen numbers; the class follows from one of them, a product, and noise."""
    random = np.random.default_rng(0)
    numbers_NV = random.normal(size=(count, 15)).astype(np.float32)
    scores_N = numbers_NV[:, 0] + numbers_NV[:, 1] * numbers_NV[:, 2] + random.normal(size=count)
    return lipt.open_dataset((numbers_NV, np.digitize(scores_N, (-2, -1, 1, 2))))


DATA = {
    "images": images,
    "dirty": dirty,
    "look-alikes": look_alikes,
    "texts": texts,
    "table": table,
}
COUNTS = {"texts": 10_000, "table": 100_000}


if __name__ == "__main__":
    main()
