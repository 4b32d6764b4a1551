"""A diagnosis by real processes: of digits with some labels flipped, before there is any run."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cluster import Cluster

NUM_FLIPPED = 60


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder of PNGs, a directory for each digit, and the names of files in the wrong one."""
    datasets = pytest.importorskip("sklearn.datasets")
    folder = tmp_path_factory.mktemp("digits")
    digits = datasets.load_digits()
    labels_N = digits.target.copy()
    draw = np.random.default_rng(0)
    wrong = draw.choice(len(labels_N), NUM_FLIPPED, replace=False)
    labels_N[wrong] = (labels_N[wrong] + draw.integers(1, 10, NUM_FLIPPED)) % 10
    for label in range(10):
        (folder / str(label)).mkdir()
    for row, (image, label) in enumerate(zip(digits.images, labels_N, strict=True)):
        picture = Image.fromarray((image * 15).astype(np.uint8))
        picture.save(folder / str(label) / f"{row:04d}.png")
    # The same picture twice, in the directory where it belongs.
    double = int(np.setdiff1d(np.arange(100), wrong)[0])
    content = (folder / str(labels_N[double]) / f"{double:04d}.png").read_bytes()
    (folder / str(labels_N[double]) / "double.png").write_bytes(content)
    return folder, {f"{row:04d}.png" for row in wrong}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, flipped: tuple[Path, set[str]]
) -> Iterator[Cluster]:
    """A coordinator of that folder, without any worker or run."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_coordinator("--data", f"imagefolder:{flipped[0]}")
        yield cluster


def test_most_flipped_labels_are_found_and_shown(
    cluster: Cluster, flipped: tuple[Path, set[str]], tmp_path: Path
) -> None:
    folder, wrong = flipped
    out = tmp_path / "found"
    done = cluster.lipt("diagnose", "--data", f"imagefolder:{folder}", "--out", str(out))
    assert done.returncode == 0, done.stderr
    with (out / "issues.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1798
    worst = sorted(rows, key=lambda row: float(row["label_score"]))[:NUM_FLIPPED]
    found = {Path(row["filepath"]).name for row in worst if row["is_label_issue"] == "True"}
    assert len(found & wrong) >= 0.8 * NUM_FLIPPED
    (double,) = [row for row in rows if row["filepath"].endswith("double.png")]
    others = json.loads(double["near_duplicate_sets"])
    assert any(rows[other]["given_label"] == double["given_label"] for other in others)
    page = (out / "diagnosis.html").read_text("utf-8")
    assert page.count("<img") >= 48
    assert "label errors" in done.stdout
    assert f"page: {out / 'diagnosis.html'}" in done.stdout
