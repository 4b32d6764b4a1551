"""Quality and CPU time of the search for label errors and duplicates, against cleanlab's.

Labels of cifar10-jpeg or digits are flipped on purpose: symmetric noise to any other class
alike, asymmetric noise to the class that is next of kin (cifar10: truck to automobile, bird
to airplane, cat and dog to each other, deer to horse; digits: to the next digit). Both sides
have the same patch features: ours their ridge head's leave-one-out chances, cleanlab those of
the same head in 5 folds. Copies of images are shifted by a pixel, brightened or darkened by a
fifth, compressed as JPEG, covered with noise, or all at once.
Run: python benchmarks/diagnosis.py --examples 10000   (pip install cleanlab, for its side)
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from lipt.common.data import open_dataset
from lipt.core.diagnosis.duplicates import find_copies, likeness_of_pictures, look_at
from lipt.core.diagnosis.label_errors import find_label_errors, trust_after
from lipt.core.proxies.ridge import class_weights, fit_sharpness, leave_one_out
from lipt.core.proxies.untrained import draw_filters, patch_features
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals

NOISES = (
    ("clean", 0.0),
    ("symmetric", 0.1),
    ("symmetric", 0.2),
    ("symmetric", 0.4),
    ("asymmetric", 0.2),
    ("asymmetric", 0.4),
)
KIN = {"cifar10": [0, 1, 0, 5, 7, 3, 6, 7, 8, 1], "digits": [*range(1, 10), 0]}
FOLDS = 5


@dataclass(frozen=True)
class Row:
    """One side on one setting; wrong is the true share, estimate what the side says it is."""

    noise: str
    rate: float
    side: str
    wrong: float
    auc: float | None
    found: int
    precision: float
    recall: float
    estimate: float
    low: float | None
    high: float | None
    sure: int | None
    sure_precision: float | None
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("cifar10", "digits"), default="cifar10")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--duplicates-only", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images, truth_N = load(arguments.data, arguments.examples)
    print(f"{arguments.data}, {len(truth_N)} examples, {arguments.threads} threads")
    result: dict[str, Any] = {"data": arguments.data, "examples": len(truth_N), "labels": []}
    if not arguments.duplicates_only:
        features_ND = features_of(images)
        for noise, rate in NOISES:
            labels_N = flipped(truth_N, noise, rate, KIN[arguments.data])
            for row in both_sides(features_ND, labels_N, truth_N, noise, rate):
                print(json.dumps(asdict(row)), flush=True)
                result["labels"].append(asdict(row))
    result["duplicates"] = [duplicates(images[: len(images) // 2], kind) for kind in CHANGES]
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


def load(data: str, count: int) -> tuple[Tensor, Tensor]:
    if data == "digits":
        dataset = open_dataset("digits-train")
    else:
        here = Path(__file__).resolve().parents[2]
        folder = Path(os.environ.get("LIPT_DATA", here / "shared" / "data"))
        dataset = open_dataset(f"parquet:{folder / 'cifar10-jpeg' / 'train.parquet'}")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(len(dataset), generator=generator)[:count].sort().values
    return dataset.images(ids), dataset.labels_N[ids]


def flipped(truth_N: Tensor, noise: str, rate: float, kin: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    labels_N = truth_N.clone()
    moved_N = torch.rand(len(truth_N), generator=generator) < rate
    if noise == "symmetric":
        by_N = torch.randint(1, 10, (len(truth_N),), generator=generator)
        return torch.where(moved_N, (labels_N + by_N) % 10, labels_N)
    return torch.where(moved_N, torch.tensor(kin)[labels_N], labels_N)


def features_of(images: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(len(images), generator=generator)[:5000]
    return patch_features(images, draw_filters(images[drawn], generator=generator))


def both_sides(
    features_ND: Tensor, labels_N: Tensor, truth_N: Tensor, noise: str, rate: float
) -> list[Row]:
    wrong_N = labels_N != truth_N
    wrong = float(wrong_N.double().mean())

    def row(side: str, ids: Tensor, **more: Any) -> Row:
        hits = float(wrong_N[ids].double().sum())
        return Row(
            noise,
            rate,
            side,
            wrong,
            found=len(ids),
            precision=hits / max(1, len(ids)),
            recall=hits / max(1, int(wrong_N.sum())),
            **more,
        )

    started = time.process_time()
    generator = torch.Generator().manual_seed(1)
    head = leave_one_out(features_ND, labels_N, 10, generator=generator)
    sharpness = fit_sharpness(head.outputs_NC, labels_N, class_weights(labels_N))
    errors_NC = errors_of(head.outputs_NC.double() * sharpness, labels_N)
    signals = Signals(errors_NC, features_ND, labels_N)
    trust_N = trust_after(find_label_errors(signals), labels_N)
    if trust_N is not None:
        second = leave_one_out(features_ND, labels_N, 10, generator=generator, trust_N=trust_N)
        weights_N = class_weights(labels_N, trust_N)
        sharpness = fit_sharpness(second.outputs_NC, labels_N, weights_N)
        second_NC = errors_of(second.outputs_NC.double() * sharpness, labels_N)
        signals = replace(signals, second_errors_NC=second_NC)
    found = find_label_errors(signals)
    seconds = time.process_time() - started
    rates = found.noise.overall
    # Half of the wrong labels that there are at least.
    sure = found.ranked()[: int(0.5 * rates.low * len(labels_N))]
    rows = [
        row(
            "ours",
            found.ranked(),
            auc=auc(-found.quality_N, wrong_N),
            estimate=rates.rate,
            low=rates.low,
            high=rates.high,
            sure=len(sure),
            sure_precision=float(wrong_N[sure].double().mean()) if len(sure) else None,
            cpu_seconds=seconds,
        )
    ]
    if find_spec("cleanlab") is None:
        return rows
    # There or not, and unknown to who checks types.
    parts = (import_module(f"cleanlab.{name}") for name in ("count", "filter", "rank"))
    count, filtering, rank = parts
    started = time.process_time()
    chances = in_folds(features_ND, labels_N, head.penalty).numpy()
    labels = labels_N.numpy()
    issues = torch.from_numpy(filtering.find_label_issues(labels, chances, n_jobs=1))
    quality = torch.from_numpy(rank.get_label_quality_scores(labels, chances))
    joint = count.estimate_joint(labels, chances)
    seconds = time.process_time() - started
    none = {"low": None, "high": None, "sure": None, "sure_precision": None}
    theirs = row(
        "cleanlab",
        torch.nonzero(issues).flatten(),
        auc=auc(-quality, wrong_N),
        estimate=float(1 - np.trace(joint)),
        cpu_seconds=seconds,
        **none,
    )
    return [*rows, theirs]


def in_folds(features_ND: Tensor, labels_N: Tensor, penalty: float) -> Tensor:
    """Chances of a ridge head that was fitted on the other folds; its sharpness on all."""
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(2))
    outputs_NC = torch.empty(len(labels_N), 10)
    for fold in order_N.chunk(FOLDS):
        is_train_N = torch.ones(len(labels_N), dtype=torch.bool)
        is_train_N[fold] = False
        train = features_ND[is_train_N].double()
        mean, scale = train.mean(dim=0), train.std(dim=0).clamp(min=1e-9)
        train = (train - mean) / scale
        targets = functional.one_hot(labels_N[is_train_N], 10).double()
        gram = train.T @ train
        gram.diagonal().add_(penalty * len(train))
        weights = torch.linalg.solve(gram, train.T @ (targets - targets.mean(dim=0)))
        rows = (features_ND[fold].double() - mean) / scale
        outputs_NC[fold] = (rows @ weights + targets.mean(dim=0)).float()
    sharpness = fit_sharpness(outputs_NC, labels_N, class_weights(labels_N))
    return (outputs_NC.double() * sharpness).softmax(dim=1)


def auc(scores_N: Tensor, wrong_N: Tensor) -> float | None:
    """How often a wrong label scores higher than a right one; ties count a half."""
    bad, good = scores_N[wrong_N].double(), scores_N[~wrong_N].double().sort().values
    if not len(bad) or not len(good):
        return None
    below = torch.searchsorted(good, bad) + torch.searchsorted(good, bad, right=True)
    return float(below.double().mean()) / 2 / len(good)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    padded = functional.pad(images.float(), (1, 1, 1, 1), mode="replicate").to(torch.uint8)
    height, width = images.shape[2:]
    # Any of the nine places but the middle one.
    places = torch.randint(8, (len(images),), generator=generator)
    places += places >= 4
    moved = torch.empty_like(images)
    for row, place in enumerate(places.tolist()):
        top, left = divmod(place, 3)
        moved[row] = padded[row, :, top : top + height, left : left + width]
    return moved


def brightened(images: Tensor, generator: torch.Generator) -> Tensor:
    darker = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return pixels(images.float() * torch.where(darker, 0.8, 1.2))


def covered(images: Tensor, generator: torch.Generator) -> Tensor:
    return pixels(images.float() + 8 * torch.randn(images.shape, generator=generator))


def compressed(images: Tensor, _: torch.Generator) -> Tensor:
    read = []
    for image in images.numpy():
        file = io.BytesIO()
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(
            file, "JPEG", quality=60
        )
        array = np.atleast_3d(np.asarray(Image.open(file)))
        read.append(torch.from_numpy(array.transpose(2, 0, 1).copy()))
    return torch.stack(read)


def changed(images: Tensor, generator: torch.Generator) -> Tensor:
    for change in (shifted, brightened, covered, compressed):
        images = change(images, generator)
    return images


def pixels(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


CHANGES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "shifted": shifted,
    "brightness": brightened,
    "noise": covered,
    "JPEG 60": compressed,
    "all four": changed,
}


def duplicates(originals: Tensor, kind: str) -> dict[str, Any]:
    """A copy of every original beside it; what is found among the originals alone is subtracted."""
    copies = CHANGES[kind](originals, torch.Generator().manual_seed(1))
    images = torch.cat((originals, copies))
    count = len(originals)
    started = time.process_time()
    pictures = look_at(lambda ids: images[ids], len(images))
    likeness = likeness_of_pictures(pictures, lambda ids: images[ids])
    kept_N = find_copies(pictures.digests, likeness).pictures_N
    seconds = time.process_time() - started
    own = torch.arange(count)
    right = int((kept_N[count:] == kept_N[:count]).sum())
    # Two originals in one group, or a copy in another's.
    merged = int((kept_N[:count] != own).sum())
    astray = int(((kept_N[count:] != kept_N[:count]) & (kept_N[count:] != own + count)).sum())
    row = {
        "kind": kind,
        "originals": count,
        "recall": right / count,
        "precision": right / max(1, right + merged + astray),
        "originals merged": merged,
        "copies astray": astray,
        "cpu_seconds": seconds,
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
