"""Image sides: accuracy on held-out labels against CPU time, for photos scaled to 32 to 224 pixels.

    python -m benchmarks.image_side [--examples 1000] [--out image_side.jsonl]

One thread opens the files, scales them, and fits a ridge head to patches at the scaled size. The
reference are features of EfficientNet-Lite0 (of the extra `backbone`). Rows in the file `--out` are
not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.json_lines import append, read
from benchmarks.photos import jpeg, write_photos
from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.requests import Proxy
from lipt.core.proxies import untrained
from lipt.core.proxies.features import LITE0, load_backbone
from lipt.core.stages.proxy import proxied_signals
from lipt.core.stages.resolve import Sources
from lipt.core.workspace import InMemory
from lipt.data.images.formats import fit_pixels
from lipt.data.loading import open_dataset
from tests.golden.datasets import cifar10_folder

SIDES = (32, 64, 96, 128, 224)
# Of cifar10-jpeg scaled up.
_ENLARGED = 224


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy and CPU time by the images' side.")
    parser.add_argument("--examples", type=int, default=1_000, help="images (default 1,000)")
    parser.add_argument("--out", type=Path, default=Path("image_side.jsonl"), help="rows so far")
    parser.add_argument("--only", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--sides", nargs="+", type=int, default=SIDES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [("ridge:patches", side) for side in arguments.sides]
    wanted.append(("ridge:backbone", max(arguments.sides)))
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            measured = {key_of(row) for row in read(arguments.out)}
            keys = [(name, arguments.examples, *one) for one in wanted]
            missing = [key for key in keys if key not in measured]
            if not missing or not DATA[name](Path(folder), arguments.examples):
                continue
            for _, _, proxy, side in missing:
                row = {"data": name, "examples": arguments.examples, "proxy": proxy, "side": side}
                append(arguments.out, {**row, **measure(folder, proxy, side)})
    shown = Table("data", "images", "proxy", "side", "ms to open", "ms of features", "accuracy")
    for row in read(arguments.out):
        open_ms, proxy_ms = (f"{row[name]:.1f}" for name in ("open_ms", "proxy_ms"))
        shown.add_row(*map(str, key_of(row)), open_ms, proxy_ms, f"{row['accuracy']:.1%}")
    Console(width=100).print(shown)


def key_of(row: dict[str, Any]) -> tuple[object, ...]:
    return row["data"], row["examples"], row["proxy"], row["side"]


def measure(folder: str, proxy: str, side: int) -> dict[str, float]:
    """CPU milliseconds an image, and the leave-one-out accuracy."""
    started = time.process_time()
    data = open_dataset(f"imagefolder:{folder}", image_size=side)
    opened = time.process_time()
    workspace = InMemory(data, torch.device("cpu"))
    if proxy == "ridge:backbone":
        workspace.backbone = load_backbone(LITE0, workspace.device)
    config = validate(RunConfig, {"evaluation_threads": 1})
    with mock.patch.object(untrained, "side_for", return_value=side):
        sources = Sources(config, None, None, None)
        signals = proxied_signals(workspace, sources, Proxy.parse(proxy))
    ended = time.process_time()
    each = 1000 / len(data)
    times = {"open_ms": each * (opened - started), "proxy_ms": each * (ended - opened)}
    return {**times, "accuracy": float((signals.facts or {})["accuracy"])}


def cifar10_scaled_up(folder: Path, count: int) -> bool:
    """Images of cifar10-jpeg as JPEG files of 224 pixels; none without the data."""
    path = cifar10_folder() / "train.parquet"
    if not path.is_file():
        print(f"cifar10-jpeg is left out: there is no {path}")
        return False
    data, generator = open_dataset(f"parquet:{path}"), torch.Generator().manual_seed(0)
    for row in torch.randperm(len(data), generator=generator)[:count].sort().values:
        below = folder / data.class_names[data.labels_N[row]]
        below.mkdir(exist_ok=True)
        image_CHW = data.images(row[None])[0].numpy()
        pixels_CHW = fit_pixels(image_CHW, 3, (_ENLARGED, _ENLARGED))
        content = jpeg(np.ascontiguousarray(pixels_CHW.transpose(1, 2, 0)))
        (below / f"{row:06}.jpg").write_bytes(content)
    return True


def shapes(folder: Path, count: int) -> bool:
    write_photos(folder, count)
    return True


DATA: dict[str, Callable[[Path, int], bool]] = {
    "shapes": shapes,
    "cifar10-jpeg": cifar10_scaled_up,
}


if __name__ == "__main__":
    main()
