"""Data sets of the golden results: small, and the same bytes on every machine.

Where labels are flipped or images repeated, the diagnosis and `auto` find something.
"""

import csv
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet
from torch import Tensor, nn

from tests.coloured_shapes import TOWERS, swapped, write_folder

_WORDS = (
    ("goal", "team", "coach", "match", "league"),
    ("bond", "market", "share", "bank", "profit"),
    ("star", "orbit", "comet", "moon", "probe"),
    ("bread", "oven", "flour", "yeast", "salt"),
)
_COMMON = ("the", "of", "a", "was", "new", "in", "old", "then")
_SWAPS = ((7, 23), (11, 40), (2, 58))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """300 images of 8 x 8 digits: 15 labels are wrong, and 5 images are repeated."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images_NHW = (found.images[:300] * 15).astype(np.uint8)
    labels_N = found.target[:300].astype(np.int64)
    labels_N[3::20] = (labels_N[3::20] + 1) % 10
    images_NHW[290:295], labels_N[290:295] = images_NHW[40:45], labels_N[40:45]
    return images_NHW, labels_N


def cifar10_folder() -> Path:
    """Where `make golden` looks for CIFAR-10; the tests' fixture `cifar10_jpeg` does the same."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg"


def cifar10_slice(cifar10: Path, folder: Path) -> str:
    table = parquet.read_table(cifar10 / "train.parquet")
    taken: Counter[int] = Counter()
    rows = []
    for row, label in enumerate(table.column("label").to_pylist()):
        taken[label] += 1
        if taken[label] <= 200:
            rows.append(row)
    path = folder / "train.parquet"
    parquet.write_table(table.take(rows), path)
    return f"parquet:{path}"


def texts(folder: Path) -> str:
    """160 sentences of 8 words about four subjects; every 16th has a wrong label."""
    rows = []
    for row in range(160):
        subject = row % 4
        words = [
            (_WORDS[subject] if _number(row, place) % 3 else _COMMON)[_number(row, place) % 5]
            for place in range(8)
        ]
        label = (subject + (row % 16 == 5)) % 4
        rows.append((" ".join(words), f"subject {label}"))
    path = _write_csv(folder / "texts.csv", ("text", "label"), rows)
    return f"csv:{path}?text=text&label=label&vocabulary=256&max_length=12"


def table(folder: Path) -> str:
    """200 rows of six numbers, of which some are missing, and a category, in three classes."""
    rows = []
    for row in range(200):
        label = row % 3
        numbers = [f"{_number(row, place) % 100 + 40 * label * (place % 2)}" for place in range(6)]
        numbers[2] = "" if row % 9 == 0 else numbers[2]
        category = ("low", "middle", "high")[(label + (_number(row, 7) % 4 == 0)) % 3]
        rows.append((*numbers, category, f"class {(label + (row % 20 == 7)) % 3}"))
    names = (*(f"n{place}" for place in range(6)), "level", "label")
    return f"csv:{_write_csv(folder / 'table.csv', names, rows)}?label=label"


def numbers(folder: Path) -> str:
    """200 rows of five numbers with a sixth to predict."""
    rows = []
    for row in range(200):
        values = [_number(row, place) % 1000 for place in range(5)]
        noise = _number(row, 6) % 200
        rows.append((*values, 2 * values[0] - values[1] + noise))
    names = (*(f"n{place}" for place in range(5)), "price")
    return f"csv:{_write_csv(folder / 'numbers.csv', names, rows)}?target=price"


def pairs(folder: Path) -> str:
    """60 images with captions, of which six have changed places."""
    return (
        f"pairs:{write_folder(folder / 'pairs', swapped(60, _SWAPS))}?{TOWERS}&size=24&clusters=5"
    )


class SmallConvNet(nn.Module):
    """Two convolutions with batch norm, the global average, and a linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_block(3, 8), *_block(8, 16))
        self.fc = nn.Linear(16, num_classes)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits_NC: Tensor = self.fc(self.stem(images_NCHW).mean(dim=(2, 3)))
        return logits_NC


def _block(in_channels: int, out_channels: int) -> Iterable[nn.Module]:
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_channels), nn.ReLU()


def _number(row: int, place: int) -> int:
    """A number that looks random: a multiplicative hash, so that no generator is needed."""
    mixed = (row * 2654435761 + place * 40503 + 12345) % 2**32
    return (mixed * 2246822519 % 2**32) >> 8


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path
