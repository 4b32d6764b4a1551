"""Estimates of wrong labels, made on purpose, by heads of very different accuracy.

    python -m benchmarks.noise_estimates [RESULTS]

Heads are fitted to DATA: columns of scikit-learn's, normal classes (classes, columns, rows,
distance from the origin), classes that no linear head separates, patches (images, classes). `any`
flips labels to any other class, `next` half of the classes to the next one. Each result is a line
of RESULTS, and is not computed again. The table of docs/diagnosis.md, in half an hour on one core.
"""

import json
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
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
DATA = """wine:13 wine:4 wine:2 iris:4 iris:2 breast_cancer:30 breast_cancer:3 digits:64 digits:32
digits:16 digits:8 3,5,300,1 3,5,300,2 3,5,3000,1 3,5,3000,2 10,20,500,1.5 10,20,500,3
10,20,3000,1.5 10,20,3000,3 2,50,200,2 2,10,2000,0.3 4,10,100,3 4,10,60,4
quadrants:300 quadrants:3000 quadrants:20000 patches:300:3 patches:300:10 patches:600:5
patches:1000:10 patches:2000:10 patches:5000:10"""
_FIELDS = ("accuracy", "wrong", "low", "high", "estimate", "sure", "sure_wrong")
_RATES = (0.0, 0.02, 0.06, 0.2, 0.36)
_ACCURACIES = (0.0, 0.4, 0.55, 0.7, 0.8, 0.9, 1.01)


def columns(name: str, count: int, random: Drawn) -> Rows:
    features_ND, labels_N = getattr(datasets, f"load_{name}")(return_X_y=True)
    return features_ND[:, random.permutation(features_ND.shape[1])[:count]], labels_N


def blobs(name: str, random: Drawn) -> Rows:
    (classes, width, count), distance = map(int, name.split(",")[:3]), float(name.split(",")[3])
    centres_CD = random.normal(size=(classes, width))
    centres_CD *= distance / np.linalg.norm(centres_CD, axis=1, keepdims=True)
    labels_N = random.integers(classes, size=count)
    return centres_CD[labels_N] + random.normal(size=(count, width)), labels_N


def quadrants(count: int, random: Drawn) -> Rows:
    points_ND = random.normal(size=(count, 8))
    return points_ND, (points_ND[:, 0] * points_ND[:, 1] > 0) + 2 * (points_ND[:, 2] > 0)


@cache
def images() -> Rows:
    dataset, generator = (
        open_dataset(f"parquet:{cifar10_folder()}/train.parquet"),
        torch.Generator(),
    )
    ids_N = torch.randperm(len(dataset), generator=generator.manual_seed(0))[:5000]
    images_NCHW = dataset.images(ids_N)
    filters = draw_filters(images_NCHW, generator=generator)
    found_ND = patch_features(images_NCHW, replace(filters, mirrored=True))
    return found_ND.numpy(), dataset.labels_N[ids_N].numpy()


def patches(count: int, classes: int, random: Drawn) -> Rows:
    (features_ND, labels_N), names = images(), random.permutation(10)[:classes]
    ids = random.permutation(np.flatnonzero(np.isin(labels_N, names)))[:count]
    return features_ND[ids], np.unique(labels_N[ids], return_inverse=True)[1]


def rows_of(name: str, random: Drawn) -> Rows:
    kind, *numbers = name.split(":")
    counts = tuple(map(int, numbers))
    if kind == "quadrants":
        return quadrants(counts[0], random)
    if kind == "patches":
        return patches(counts[0], counts[1], random)
    return columns(kind, counts[0], random) if counts else blobs(name, random)


def measured(data: Rows, kind: str, rate: float, random: Drawn) -> dict[str, Any]:
    features_ND, true_N = data
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
    shares = (float(wrong_N.mean()), noise.low, noise.high, noise.known_rate)
    counts = (len(sure), int(wrong_N[sure].sum()))
    return dict(zip(_FIELDS, (head.accuracy, *shares, *counts), strict=True))


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
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "noise-estimates.jsonl")
    path.touch()
    torch.set_num_threads(1)
    results = [json.loads(line) for line in path.read_text().splitlines()]
    known = {(it["data"], it["kind"], it["rate"], it["seed"]) for it in results}
    for seed, data, kind, rate in product(range(3), DATA.split(), ("any", "next"), _RATES):
        if (data, kind, rate, seed) in known or (kind == "next" and not rate):
            continue
        random = np.random.default_rng([seed, zlib.crc32(data.encode())])
        result = measured(rows_of(data, random), kind, rate, random)
        results.append(result | {"data": data, "kind": kind, "rate": rate, "seed": seed})
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[-1]) + "\n")
    print("| accuracy | wrong | heads | interval | covers | shown | estimate | sure and wrong |")
    print("|---|---:|---:|---|---:|---:|---:|---:|", *rows(results), sep="\n")


if __name__ == "__main__":
    main()
