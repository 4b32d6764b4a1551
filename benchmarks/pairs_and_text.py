"""A million image-caption pairs, and a million short texts: seconds and memory of every stage.

Pairs: the same few images of 16 x 16 pixels under many names, in a table with a caption for each
row; towers are a random projection of the pixels and a bag of hashed words. Texts: lines of ten
words with one of ten labels, in CSV, JSON lines or Parquet, tokens by the built-in tokenizer; the
network is a bag of words and one linear layer. Memory is the peak of what cannot go to the disk
(RssAnon), above that before a stage; what is opened twice is found in the cache the second time.

    python -m benchmarks.pairs_and_text [--rows 1000000] [--only pairs|csv|jsonl|parquet]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.signals_memory import stage
from lipt.common.data import Dataset, open_dataset
from lipt.common.data.input_format import input_format
from lipt.common.determinism import pinned_kernels
from lipt.common.signals.passes import Batches
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.signals import Signals
from lipt.core.signals.user_features import features_of_pairs

WHAT = ("pairs", "csv", "jsonl", "parquet")
NUM_IMAGES, SIDE, WIDTH, NUM_LABELS, WORDS_A_ROW, VOCABULARY = 500, 16, 256, 10, 10, 5000
Found = dict[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="on a disk; a temporary one by default")
    parser.add_argument("--only", choices=WHAT)
    parser.add_argument("--measure", choices=WHAT, help="measure this alone, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        if arguments.measure is not None:
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            print(json.dumps(measured(arguments.measure, arguments.rows, folder)))
            return
        table = Table("data", "stage", "seconds", "peak MB of anonymous memory")
        table.title = f"{arguments.rows} rows"
        for what in WHAT if arguments.only is None else (arguments.only,):
            command = [sys.executable, "-m", "benchmarks.pairs_and_text", "--measure", what]
            size = ["--rows", str(arguments.rows), "--folder", str(folder)]
            done = subprocess.run([*command, *size], check=True, stdout=subprocess.PIPE, text=True)
            for stage_name, (seconds, peak_mb) in json.loads(done.stdout).items():
                table.add_row(what, stage_name, f"{seconds:.1f}", f"{peak_mb:.0f}")
        Console().print(table)


def measured(what: str, num_rows: int, folder: Path) -> Found:
    found: Found = {}
    with pinned_kernels(1):
        if what == "pairs":
            measure_pairs(found, num_rows, folder)
        else:
            measure_text(found, what, num_rows, folder)
    return found


def measure_pairs(found: Found, num_rows: int, folder: Path) -> None:
    # Apart from the cache, which a folder's time would tell of.
    folder = folder / "pairs"
    folder.mkdir()
    write_pairs(folder, num_rows)
    towers = "&".join(f"{kind}_tower={__spec__.name}:{kind}_tower" for kind in ("image", "text"))
    source = f"pairs:{folder}?{towers}&size={SIDE}"
    for name in ("index and embed", "open again"):
        with stage(found, name):
            dataset = opened(source)
    own = features_of_pairs(dataset)
    assert own is not None
    signals = Signals(
        torch.empty(num_rows, 0),
        own.features_ND,
        dataset.labels_N,
        paired_features_NP=own.paired_features_NP,
    )
    chosen_from(found, signals, [("clip_score", False), ("clipcov", True)])


def measure_text(found: Found, what: str, num_rows: int, folder: Path) -> None:
    path = folder / f"texts.{what}"
    WRITERS[what](path, num_rows)
    with stage(found, "index and tokenize"):
        dataset = opened(f"{what}:{path}?text=text&label=label&max_length={2 * WORDS_A_ROW}")
    torch.manual_seed(0)
    batches = Batches(
        dataset,
        input_format(dataset, torch.arange(len(dataset)), 0),
        torch.device("cpu"),
        1024,
        lambda *_: None,
    )
    with stage(found, "score"):
        signals = compute_signals(BagOfWords(), batches, scratch=folder / "scratch")
    chosen_from(found, signals, [("el2n", True), ("moderate", True)])


def chosen_from(found: Found, signals: Signals, asked: list[tuple[str, bool]]) -> None:
    for name, balanced in asked:
        strategy = find_strategy(name)
        with stage(found, f"{name}, {'per class' if balanced else 'all at once'}, 10%"):
            select(
                strategy,
                signals,
                len(signals) // 10,
                balanced=balanced,
                seed=0,
                options=strategy.parse_options({}),
            )


def opened(source: str) -> Dataset:
    return open_dataset(source, allowed_modules=["benchmarks", "__main__"])


def write_pairs(folder: Path, num_rows: int) -> None:
    """A table of rows, of which many name the same image."""
    generator = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    with (folder / "captions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "caption"])
        for row, (_, text) in enumerate(texts(num_rows)):
            writer.writerow([f"{row % NUM_IMAGES}.png", text])


def texts(num_rows: int) -> Iterator[tuple[int, str]]:
    """Labels and texts, of which some words tell the label."""
    generator = np.random.default_rng(1)
    for _ in range(0, num_rows, 10_000):
        words = generator.integers(0, VOCABULARY, (10_000, WORDS_A_ROW))
        for row in words:
            label = int(row[0]) % NUM_LABELS
            yield label, " ".join([f"topic{label}", *(f"word{word}" for word in row)])


def write_csv(path: Path, num_rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows(texts(num_rows))


def write_jsonl(path: Path, num_rows: int) -> None:
    with path.open("w") as file:
        for label, text in texts(num_rows):
            file.write(json.dumps({"label": label, "text": text}) + "\n")


def write_parquet(path: Path, num_rows: int) -> None:
    labels, lines = zip(*texts(num_rows), strict=True)
    pq.write_table(pa.table({"label": labels, "text": lines}), path, row_group_size=50_000)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def image_tower() -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, WIDTH))


def text_tower() -> Callable[[list[str]], Tensor]:
    torch.manual_seed(1)
    bags = nn.EmbeddingBag(2**12, WIDTH)
    number = partial(int.from_bytes, byteorder="little")

    def encode(lines: list[str]) -> Tensor:
        numbers = [[number(word.encode()) % 4093 for word in line.split()] for line in lines]
        ends = torch.tensor([0, *map(len, numbers)]).cumsum(0)[:-1]
        return bags(torch.tensor(list(chain.from_iterable(numbers))), ends)

    return encode


class BagOfWords(nn.Module):
    """The mean of words' vectors, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(2**15, 64, padding_idx=0)
        self.last = nn.Linear(64, NUM_LABELS)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return self.last(self.words(tokens_BL))


if __name__ == "__main__":
    main()
