"""Who waits for whom while a learner is trained on image files, with and without reading ahead.

Three sides in turns, of one shard: as it was (all files are decoded first, and each minibatch is
augmented when its step is due), in turn (each is decoded and augmented when its step is due), and
ahead, as a worker does. They train one learner on this machine's CPU, and on two made-up devices
whose step is a sleep: it takes time and holds no core, as a step on an accelerator does. One is
slower than the decoding and augmenting of a minibatch, the other faster.

    python benchmarks/prefetch_timeline.py [--rounds 3] [--without-cpu]

Images are those of $LIPT_DATA/cifar10-jpeg (or ../shared/data), else made up: as JPEG files of
32 x 32 pixels, and enlarged to 224 x 224. In the timelines d is decoding and a augmenting; the
device has the numbers of minibatches, and a dot where it waits.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lipt.common.config.run_config import AugmentationConfig, LearnersConfig, PruningMethod
from lipt.common.config.tasks import LearnerTask
from lipt.common.data import open_dataset
from lipt.common.data.shard import Shard, open_shard, unpack_shard
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.inputs.stored import Stored
from lipt.common.models import build_model, lay_out
from lipt.common.weights.files import pack
from lipt.core.learner import minibatches
from lipt.core.learner.minibatches import BatchTimes
from lipt.core.learner.training import ComputeMode, compute_mode, train_on_shard

CPU = torch.device("cpu")
MODEL = "resnet8"
SIDES = ("as it was", "in turn", "ahead")
# Of what a minibatch takes to be decoded and augmented.
SLOWER, FASTER = 1.5, 0.5
_COLUMNS = 88


@dataclass(frozen=True)
class Files:
    """A shard of image files, and how a learner goes through them."""

    size: int
    content: bytes
    learners: LearnersConfig

    @property
    def task(self) -> LearnerTask:
        return LearnerTask(
            model=MODEL,
            num_classes=10,
            learners=self.learners,
            augmentation=AugmentationConfig(),
            pruning_method=PruningMethod.NONE,
            density=1.0,
            seed=0,
            image=ImageFormat(3, self.size, self.size, (0.5,) * 3, (0.25,) * 3),
        )


@dataclass
class Turn:
    """What a turn took; all times are of one clock."""

    began: float
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    decoded_before: float = 0.0
    batches: list[tuple[BatchTimes, float]] = field(default_factory=list)

    @property
    def first_wait(self) -> float:
        """From the beginning to the first step."""
        return self.batches[0][0].taken - self.began

    @property
    def later_waits(self) -> float:
        return sum(times.waited for times, _ in self.batches[1:])

    @property
    def making(self) -> float:
        """What a minibatch of the first pass takes to be decoded and augmented."""
        return statistics.median(times.ready - times.read_from for times, _ in self.batches)


@dataclass(frozen=True)
class SleepingDevice(ComputeMode):
    """Takes its time for a step, and no core."""

    seconds: float = 0.0

    def loss(
        self, model: nn.Module, examples_B: Stored, targets_B: Tensor, task: LearnerTask
    ) -> Tensor:
        del examples_B, targets_B, task  # nothing is computed
        time.sleep(self.seconds)
        return torch.stack([one.sum() for one in model.parameters()]).sum() * 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Who waits for whom while a learner is trained.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-cpu", action="store_true", help="made-up devices alone")
    given = parser.parse_args()
    console = Console(width=120)
    cores = len(os.sched_getaffinity(0))
    with pinned_kernels(1):
        for files in shards():
            making = turn("in turn", first_pass(files), sleeping(0.0)).making
            devices: dict[str, ComputeMode] = {
                f"slower, {making * SLOWER * 1e3:.0f} ms": sleeping(making * SLOWER),
                f"faster, {making * FASTER * 1e3:.0f} ms": sleeping(making * FASTER),
            }
            if not given.without_cpu:
                devices["this CPU"] = compute_mode(files.task, CPU)
            learners = files.learners
            table = Table("device", "side", "s", "ratio", "first wait, s", "others, s", "CPU s")
            table.title = (
                f"{learners.num_steps} passes over {learners.num_minibatches} x "
                f"{learners.batch_size} files of {files.size} x {files.size}; decoded and "
                f"augmented in {making * 1e3:.0f} ms; {cores} cores, load {os.getloadavg()[0]:.1f}"
            )
            drawn: dict[str, dict[str, Turn]] = {}
            for name, mode in devices.items():
                turns = measured(files, mode, given.rounds)
                for row in rows(turns):
                    table.add_row(name, *row)
                drawn[name] = {side: taken[-1] for side, taken in turns.items()}
            console.print(table)
            for name, turns_of in drawn.items():
                console.print(f"\n{files.size} x {files.size}, {name}; the last turn's beginning")
                console.print(timelines(turns_of, learners.num_minibatches), highlight=False)


def measured(files: Files, mode: ComputeMode, rounds: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            turns[side].append(turn(side, files, mode))
    return turns


def turn(side: str, files: Files, mode: ComputeMode) -> Turn:
    """Train a learner, from the shard's bytes on."""
    task = files.task
    model = build_model(MODEL, num_classes=10, inputs=spec_of(task.inputs), seed=0).train()
    lay_out(model, MODEL, CPU)
    number = files.learners.num_minibatches * files.learners.batch_size
    opened: Callable[..., object] = unpack_shard if side == SIDES[0] else open_shard
    reading = nullcontext() if side == SIDES[2] else without_reading_ahead()
    cpu_began, made = time.process_time(), Turn(began=time.perf_counter())
    shard = opened(files.content, task.inputs, num_examples=number, target=task.target)
    if side == SIDES[0]:
        made.decoded_before = time.perf_counter() - made.began
    assert isinstance(shard, Shard) is (side == SIDES[0])
    with reading:
        train_on_shard(
            model,
            task,
            shard.examples,  # type: ignore[attr-defined]
            shard.targets_N,  # type: ignore[attr-defined]
            mode,
            on_step=lambda *_: None,
            should_stop=lambda: False,
            on_batch=lambda times, ended: made.batches.append((times, ended)),
        )
    made.seconds = time.perf_counter() - made.began
    made.cpu_seconds = time.process_time() - cpu_began
    return made


def without_reading_ahead() -> AbstractContextManager[object]:
    def in_turn(
        read: Callable[[object], object], parts: Iterable[object]
    ) -> AbstractContextManager[Iterator[object]]:
        return nullcontext(map(read, parts))

    return patch.object(minibatches, "reading_ahead", in_turn)


def rows(turns: dict[str, list[Turn]]) -> Iterator[list[str]]:
    """A line for each side; the ratio is the median of each turn's own to that in turn."""
    for side, taken in turns.items():
        ratio = statistics.median(
            one.seconds / other.seconds for one, other in zip(taken, turns["in turn"], strict=True)
        )
        medians = [
            statistics.median(getattr(one, name) for one in taken)
            for name in ("seconds", "first_wait", "later_waits", "cpu_seconds")
        ]
        seconds, *others = (f"{value:.3f}" for value in medians)
        yield [side, seconds, f"{ratio:.2f}", *others]


def timelines(turns: dict[str, Turn], num_batches: int) -> str:
    """Two lines for each side: what makes minibatches, and the device; of the first pass."""
    ends = [turn.batches[num_batches - 1][1] - turn.began for turn in turns.values()]
    column = max(ends) / _COLUMNS
    lines = [f"a column is {column * 1e3:.1f} ms"]
    for side, turn in turns.items():
        makes, device = [" "] * _COLUMNS, [" "] * _COLUMNS
        draw(device, ".", 0.0, turn.batches[-1][1] - turn.began, column)
        draw(makes, "d", 0.0, turn.decoded_before, column)
        for number, (times, ended) in enumerate(turn.batches):
            began = turn.began
            if side != SIDES[0]:
                draw(makes, "d", times.read_from - began, times.augmented_from - began, column)
            draw(makes, "a", times.augmented_from - began, times.ready - began, column)
            draw(device, str(number % 10), times.taken - began, ended - began, column)
        lines += [f"{side:>10} {''.join(makes)}", f"{'device':>10} {''.join(device)}"]
    return "\n".join(lines)


def draw(line: list[str], letter: str, begin: float, end: float, column: float) -> None:
    """Of a column the longest part has it, give or take what is cut."""
    for place in range(round(begin / column), min(round(end / column), len(line))):
        line[place] = letter


def first_pass(files: Files) -> Files:
    learners = files.learners.model_copy(update={"num_steps": 1})
    return Files(files.size, files.content, learners)


def sleeping(seconds: float) -> SleepingDevice:
    return SleepingDevice(CPU, False, torch.contiguous_format, seconds)


def shards() -> Iterator[Files]:
    yield shard_of(32, LearnersConfig(num_minibatches=8, num_steps=3, batch_size=128))
    yield shard_of(224, LearnersConfig(num_minibatches=8, num_steps=2, batch_size=16))


def shard_of(size: int, learners: LearnersConfig) -> Files:
    number = learners.num_minibatches * learners.batch_size
    files = list(itertools.islice(jpegs(size, number), number))
    offsets = list(itertools.accumulate(map(len, files), initial=0))
    tensors = {
        "encoded": torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8),
        "offsets": torch.tensor(offsets),
        "labels": torch.arange(number) % 10,
    }
    return Files(size, pack(tensors), learners)


def jpegs(size: int, number: int) -> Iterator[bytes]:
    """Images as they are in the file where that is their size; else enlarged."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg" / "test.parquet"
    if path.is_file():
        source = open_dataset(f"parquet:{path}", memory_budget_bytes=0)
        for row in range(number):
            file = source.raw_bytes(row)
            yield file if size == 32 else enlarged(Image.open(io.BytesIO(file)), size)
        return
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        pixels = torch.randint(256, (8, 8, 3), generator=generator).to(torch.uint8)
        yield enlarged(Image.fromarray(pixels.numpy()), size)


def enlarged(image: Image.Image, size: int) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


if __name__ == "__main__":
    main()
