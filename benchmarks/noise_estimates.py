"""Estimates of wrong labels, made on purpose, by heads of very different accuracy.

    python -m benchmarks.noise_estimates [--seeds 3] [--results noise-estimates.jsonl]

Every head of DATA is fitted to labels of which 0 to 36% are wrong: `any` flips to any other class,
`next` flips half of the classes to the next one. Each result is a line of a file, and what is there
is not computed again. The table is that of docs/diagnosis.md. Half an hour on one core.

Shapes: N examples, D features.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets

from lipt.common.data import open_dataset
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.proxies.ridge import class_weights, fit_inverse_temperature, leave_one_out
from lipt.core.proxies.untrained import draw_filters, patch_features
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.golden.datasets import cifar10_folder

Drawn = np.random.Generator
Rows = tuple[NDArray[Any], NDArray[Any]]
_RATES = (0.0, 0.02, 0.06, 0.2, 0.36)
_ACCURACIES = (0.0, 0.4, 0.55, 0.7, 0.8, 0.9, 1.01)


def columns(name: str, count: int, random: Drawn) -> Rows:
    """Some columns of a data set of scikit-learn."""
    features_ND, labels_N = getattr(datasets, f"load_{name}")(return_X_y=True)
    return features_ND[:, random.permutation(features_ND.shape[1])[:count]], labels_N


def blobs(classes: float, width: float, count: float, distance: float, random: Drawn) -> Rows:
    """Normal classes around points at this distance from the origin."""
    centres_CD = random.normal(size=(int(classes), int(width)))
    centres_CD *= distance / np.linalg.norm(centres_CD, axis=1, keepdims=True)
    labels_N = random.integers(int(classes), size=int(count))
    return centres_CD[labels_N] + random.normal(size=(int(count), int(width))), labels_N


def quadrants(count: int, random: Drawn) -> Rows:
    """Four classes, of which a linear head cannot tell two from the other two."""
    points_ND = random.normal(size=(count, 8))
    return points_ND, (points_ND[:, 0] * points_ND[:, 1] > 0) + 2 * (points_ND[:, 2] > 0)


@cache
def images() -> Rows:
    """Patch features of 5,000 images of cifar10-jpeg, and their labels."""
    dataset, generator = (
        open_dataset(f"parquet:{cifar10_folder()}/train.parquet"),
        torch.Generator(),
    )
    ids_N = torch.randperm(len(dataset), generator=generator.manual_seed(0))[:5000]
    images_NCHW = dataset.images(ids_N)
    filters = draw_filters(images_NCHW, generator=generator)
    found_ND = patch_features(images_NCHW, filters, mirrored=True)
    return found_ND.numpy(), dataset.labels_N[ids_N].numpy()


def patches(count: int, classes: int, random: Drawn) -> Rows:
    """Patch features of images of some classes."""
    (features_ND, labels_N), names = images(), random.permutation(10)[:classes]
    ids = random.permutation(np.flatnonzero(np.isin(labels_N, names)))[:count]
    return features_ND[ids], np.unique(labels_N[ids], return_inverse=True)[1]


_TAKEN = {"wine": (13, 4, 2), "iris": (4, 2), "breast_cancer": (30, 3), "digits": (64, 32, 16, 8)}
_BLOBS = "3,5,300,1 3,5,300,2 3,5,3000,1 3,5,3000,2 10,20,500,1.5 10,20,500,3 10,20,3000,1.5"
_MORE_BLOBS = "10,20,3000,3 2,50,200,2 2,10,2000,0.3 4,10,100,3 4,10,60,4"
_PATCHES = ((300, 3), (300, 10), (600, 5), (1000, 10), (2000, 10), (5000, 10))
DATA: dict[str, Callable[[Drawn], Rows]] = {
    **{f"{it}:{d}": partial(columns, it, d) for it, taken in _TAKEN.items() for d in taken},
    **{it: partial(blobs, *map(float, it.split(","))) for it in f"{_BLOBS} {_MORE_BLOBS}".split()},
    **{f"quadrants:{count}": partial(quadrants, count) for count in (300, 3000, 20_000)},
    **{
        f"patches:{count}:{classes}": partial(patches, count, classes)
        for count, classes in _PATCHES
    },
}


def measured(rows: Rows, kind: str, rate: float, random: Drawn) -> dict[str, Any]:
    """The estimate for labels made wrong on purpose."""
    features_ND, true_N = rows
    labels_N, num_classes = true_N.copy(), int(true_N.max()) + 1
    ids = random.permutation(len(true_N))
    if kind == "next":
        ids = ids[true_N[ids] % 2 == 0]
        ids = ids[: len(ids) // 2]
    ids = ids[: round(rate * len(true_N))]
    steps = 1 if kind == "next" else random.integers(1, num_classes, len(ids))
    labels_N[ids] = (labels_N[ids] + steps) % num_classes
    inputs_ND, given_N = torch.tensor(features_ND).float(), torch.tensor(labels_N).long()
    head = leave_one_out(inputs_ND, given_N, num_classes, generator=torch.Generator())
    scale = fit_inverse_temperature(head.outputs_NC, given_N, class_weights(given_N))
    errors_NC = errors_of(head.outputs_NC.double() * scale, given_N)
    found = find_label_errors(Signals(errors_NC, inputs_ND, given_N))
    noise, wrong_N = found.noise.overall, labels_N != true_N
    sure = found.ranked()[: int(noise.low * len(labels_N) / 2)].numpy()
    return {
        "accuracy": head.accuracy,
        "wrong": float(wrong_N.mean()),
        "low": noise.low,
        "high": noise.high,
        "estimate": noise.known_rate,
        "sure": len(sure),
        "sure_wrong": int(wrong_N[sure].sum()),
    }


def rows(results: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Means by the head's accuracy and the true noise, as rows of a table in Markdown."""
    for (least, most), rate in product(pairwise(_ACCURACIES), _RATES):
        cell = [it for it in results if least <= it["accuracy"] < most and it["rate"] == rate]
        if not cell:
            continue
        known = [it["estimate"] for it in cell if it["estimate"] is not None]
        wrong, low, high = (fmean(it[name] for it in cell) for name in ("wrong", "low", "high"))
        covers = fmean(it["low"] <= it["wrong"] <= it["high"] for it in cell)
        sure, right = (sum(it[name] for it in cell) for name in ("sure", "sure_wrong"))
        estimate, shown = f"{fmean(known or [0]):.1%}", f"{len(known) / len(cell):.0%}"
        head, interval = f"{least:.0%} to {min(1, most):.0%}", f"{low:.1%} to {high:.1%}"
        cells = (head, f"{wrong:.1%}", len(cell), interval, f"{covers:.0%}", shown, estimate)
        yield f"| {' | '.join(map(str, cells))} | {right:,} of {sure:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimates of labels made wrong.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("noise-estimates.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.results.touch()
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    known = {(it["data"], it["kind"], it["rate"], it["seed"]) for it in results}
    for seed, data, kind, rate in product(range(arguments.seeds), DATA, ("any", "next"), _RATES):
        if (data, kind, rate, seed) in known or (kind == "next" and not rate):
            continue
        random = np.random.default_rng([seed, zlib.crc32(data.encode())])
        result = measured(DATA[data](random), kind, rate, random)
        results.append(result | {"data": data, "kind": kind, "rate": rate, "seed": seed})
        with arguments.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[-1]) + "\n")
    print(
        "| accuracy | wrong | heads | interval | covers | estimates | their mean | sure and wrong |"
    )
    print("|---|---:|---:|---|---:|---:|---:|---:|", *rows(results), sep="\n")


if __name__ == "__main__":
    main()
