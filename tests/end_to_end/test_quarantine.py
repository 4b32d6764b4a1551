"""Broken images, with real processes: what is chosen is what is chosen where they were removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.cluster import SMALL_RUN, Cluster
from tests.end_to_end.patient_coordinator import PATIENT

datasets = pytest.importorskip("sklearn.datasets")

NUM_IMAGES = 400
# Of the folder's rows, by class and then by name.
BROKEN = (0, 57, 399)
CONFIG = """
[compute]
scoring_range = 64
"""
RUN = {
    **SMALL_RUN,
    "evaluation_threads": 1,
    "learners": {"num_learners": 2, "num_steps": 2, "batch_size": 32, "num_minibatches": 1},
}
FEATURES = np.random.default_rng(0).normal(size=(NUM_IMAGES, 6)).astype(np.float32)


def write(folder: Path) -> list[Path]:
    digits = datasets.load_digits()
    for number in range(NUM_IMAGES):
        path = folder / str(digits.target[number]) / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = (digits.images[number] * 15.9).astype(np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(path)
    return sorted(folder.rglob("*.png"))


def break_some(paths: list[Path]) -> None:
    empty, cut, garbage = (paths[row] for row in BROKEN)
    empty.write_bytes(b"")
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    garbage.write_bytes(b"no image at all")


def choices(cluster: Cluster, features: NDArray[np.float32]) -> list[NDArray[Any]]:
    """What is chosen and found: by labels, by the model, by a head, by features; and suspects."""
    with cluster.client() as client:
        client.wait(client.start_run(dict(RUN)).run_id)
        subsets = [
            client.subset(strategy="uniform_per_class", fraction=0.1),
            client.subset(strategy="craig", fraction=0.1),
            client.subset(strategy="auto", fraction=0.2),
            client.subset(strategy="kcenter", budget=30, features={"features": features}),
        ]
        diagnosis = client.diagnose()
    return [*(subset.indices for subset in subsets), np.flatnonzero(diagnosis.suspect)]


def test_what_is_chosen_is_what_is_chosen_where_broken_images_were_removed(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder, removed = tmp_path / "all", tmp_path / "removed"
    paths = write(folder)
    shutil.copytree(folder, removed)
    for row in BROKEN:
        (removed / paths[row].relative_to(folder)).unlink()
    break_some(paths)
    ids = np.delete(np.arange(NUM_IMAGES), BROKEN)

    source = f"imagefolder:{folder}"
    flags = ("--data", source, "--max-corrupt", "3", *cluster.config(CONFIG))
    coordinator = cluster.start_coordinator(*flags, program=PATIENT)
    coordinator.wait_for("3 of 400 images cannot be used and are left out: 0, 57, 399")
    cluster.start_worker("sees", "--worker-data", source)
    found = choices(cluster, FEATURES)
    assert int(coordinator.wait_for(r"of 7 ranges, (\d+) by 1 workers")[1]) > 0
    with cluster.client() as client:
        subset = client.subset(strategy="craig", fraction=0.1)
        assert subset.manifest["data"]["num_examples"] == NUM_IMAGES
        assert subset.quarantined == BROKEN
        file = str(subset.save(tmp_path / "subset.json"))
        data = client.info().dataset
        assert data is not None
        assert (data.num_examples, data.quarantined) == (NUM_IMAGES, BROKEN)

    # Who has the subset opens the same data, as far as it needs it.
    trained = cluster.lipt(
        "train", "--data", source, "--model", "resnet8", "--subset", file, "--steps", "2"
    )
    assert trained.returncode == 0, trained.stderr
    written = ("--to", "webdataset", "--out", str(tmp_path / "shards"))
    export = ("-m", "lipt.trainer.cli", "subset", "export", file, "--data", source, *written)
    cluster.start("export", export).wait_for("40 examples")

    (tmp_path / "other").mkdir()
    with Cluster(tmp_path / "other") as other:
        other.start_coordinator("--data", f"imagefolder:{removed}", *other.config(CONFIG))
        other.start_worker("one")
        expected = choices(other, FEATURES[ids])
    assert [len(rows) for rows in expected[:-1]] == [40, 40, 79, 30]
    for rows, places in zip(found, expected, strict=True):
        assert rows.tolist() == ids[places].tolist()
