"""Tables, texts and features by real processes: from a file to a model trained on a subset."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch

from lipt.common.data import open_dataset
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.states import RunState
from lipt.common.weights.files import pack
from lipt.trainer import Client
from tests.cluster import Cluster

LEARNERS = {"num_learners": 2, "num_steps": 3, "batch_size": 64}
SMALL_RUN = {"learners": LEARNERS, "soup": {"num_alphas": 2}}


def serve(cluster: Cluster, data: str, model: str) -> Client:
    """A coordinator, two workers and a run that is ready."""
    cluster.start_coordinator("--data", data, "--model", model)
    for name in ("one", "two"):
        cluster.start_worker(name)
    client = cluster.client()
    run = client.wait(client.start_run(SMALL_RUN).run_id)
    assert run.state is RunState.READY, run.message
    return client


def train(cluster: Cluster, data: str, test: str, model: str, *flags: str) -> float:
    """Accuracy on the test set after main training on a subset."""
    done = cluster.lipt(
        *("train", "--data", data, "--test", test, "--model", model, "--json", "--steps", "40"),
        *("--set", "batch_size=32", "--set", "learning_rate=0.05", *flags),
        *("--log", str(cluster.directory / "train.jsonl")),
    )
    assert done.returncode == 0, done.stderr
    accuracy: float = json.loads(done.stdout)["test_accuracy"]
    return accuracy


def write_table(path: Path, part: str) -> Path:
    """The tumours, with words for their labels, a column of categories and some gaps."""
    rows = open_dataset(f"breast_cancer-{part}").rows
    assert isinstance(rows, ColumnRows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"m{place}" for place in range(30)), "large", "diagnosis"])
        for row, values in enumerate(rows.tensors[""].tolist()):
            label = rows.class_names[rows.labels_N[row]]
            cells = [row, *values, "yes" if values[0] > 14 else "no", label]
            cells[2] = "" if row % 9 == 0 else cells[2]
            writer.writerow(cells)
    return path


def test_a_table_of_numbers_and_categories(cluster: Cluster, tmp_path: Path) -> None:
    options = "?label=diagnosis&drop=id"
    data, test = (
        f"csv:{write_table(tmp_path / f'{part}.csv', part)}{options}" for part in ("train", "test")
    )
    with serve(cluster, data, "mlp") as client:
        subset = client.subset(strategy="el2n", fraction=0.1)
        assert len(subset) == 46
        assert subset.fingerprint == open_dataset(data).fingerprint
    assert train(cluster, data, test, "mlp", "--strategy", "auto", "--fraction", "0.1") > 0.8


def test_texts(cluster: Cluster) -> None:
    data, test, model = "pydocs-train", "pydocs-test", "text:tiny"
    with serve(cluster, data, model) as client:
        assert len(client.subset(strategy="craig", fraction=0.1)) == 217
    # The most frequent of the eight has 0.17.
    flags = ("--strategy", "uniform_per_class", "--fraction", "0.3")
    assert train(cluster, data, test, model, *flags) > 0.25


def test_features_and_pairs(cluster: Cluster, tmp_path: Path) -> None:
    sources = []
    for part in ("train", "test"):
        digits = open_dataset(f"digits-{part}")
        pixels_ND = digits.images(torch.arange(len(digits))).flatten(1).float()
        tensors = {"X": pixels_ND, "y": digits.labels_N, "paired_features": pixels_ND.flip(1)}
        path = tmp_path / f"{part}.safetensors"
        path.write_bytes(pack(tensors))
        sources.append(f"features:{path}")
    with serve(cluster, sources[0], "linear") as client:
        assert len(client.subset(strategy="clipcov", fraction=0.1)) == 144
    flags = ("--strategy", "kcenter", "--fraction", "0.1")
    assert train(cluster, *sources, "linear", *flags) > 0.6
