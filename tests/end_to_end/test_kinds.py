"""Tables, texts, features, columns, targets and pairs by real processes: to a trained model."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lipt.common.data import open_dataset, open_pairs
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.errors import InvalidRequestError
from lipt.trainer import Client
from lipt.trainer.views import RunView
from tests.cluster import Cluster
from tests.coloured_shapes import TOWERS, caption_of, swapped, write_folder
from tests.session import Session

LEARNERS = {"num_learners": 2, "num_steps": 3, "batch_size": 64}
SMALL_RUN = {"learners": LEARNERS, "soup": {"num_alphas": 2}}


def serve(
    cluster: Cluster, data: str, model: str, config: dict[str, Any], *allowed: str
) -> tuple[Client, RunView]:
    """A coordinator, two workers and a run that is ready."""
    cluster.start_coordinator("--data", data, "--model", model, *allowed)
    for name in ("one", "two"):
        cluster.start_worker(name, *allowed)
    client = cluster.client()
    return client, client.wait(client.start_run(config).run_id)


def train(cluster: Cluster, data: str, test: str, model: str, *flags: str) -> float:
    """Accuracy on the test set, or score, after main training on a subset."""
    given = ("--data", data, "--test", test, "--model", model)
    done = cluster.lipt("train", *given, "--json", *flags)
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
    client, _ = serve(cluster, data, "mlp", SMALL_RUN)
    with client:
        subset = client.subset(strategy="el2n", fraction=0.1)
        assert len(subset) == 46
        assert subset.fingerprint == open_dataset(data).fingerprint
    choosing = ("--strategy", "auto", "--fraction", "0.1")
    recipe = ("--steps", "40", "--set", "batch_size=32", "--set", "learning_rate=0.05")
    assert train(cluster, data, test, "mlp", *choosing, *recipe) > 0.8


READER_ALLOWED = ("--allow-module", "tests.sentences")
READER_RUN: dict[str, Any] = {
    "model": "tests.sentences:reader",
    "validation": {"fraction": 0.1},
    "learners": {"num_learners": 2, "num_steps": 8, "batch_size": 128, "num_snapshots": 2},
    "soup": {"num_alphas": 4, "batch_norm_examples": 64},
}


def test_dictionaries_of_tensors_go_from_workers_to_main_training(cluster: Cluster) -> None:
    data = open_dataset("tests.sentences:train", allowed_modules=["tests.sentences"])
    assert str(data.inputs) == "tokens int64[12], figures float32[3]"
    model = "tests.sentences:reader"
    client, run = serve(cluster, "tests.sentences:train", model, READER_RUN, *READER_ALLOWED)
    with client:
        assert run.soup is not None
        # A third of the sentences are of each class.
        assert run.soup.soup_accuracy > 0.5
        assert client.info().dataset is not None
        for strategy in ("grand", "forgetting", "auto"):
            subset = client.subset(run.run_id, strategy, fraction=0.2)
            assert len(subset) == 120, strategy
            assert subset.fingerprint == data.fingerprint
        diagnosis = client.diagnose(run.run_id)
        assert diagnosis.class_names == ("animals", "cars", "plants")
    choosing = ("--run", run.run_id, "--strategy", "el2n", "--fraction", "0.5", "--epochs", "5")
    test = "tests.sentences:held_out"
    trained = train(cluster, "tests.sentences:train", test, model, *READER_ALLOWED, *choosing)
    assert trained > 0.5


MODULE = "tests.measurements"
ALLOWED = ("--allow-module", MODULE)
STRATEGIES = ("el2n", "grand", "craig", "gradmatch", "herding", "moderate", "uniform_per_class")


def test_numbers_go_from_workers_to_main_training(cluster: Cluster) -> None:
    data, model = f"{MODULE}:people", f"{MODULE}:regressor"
    opened = open_dataset(data, allowed_modules=[MODULE])
    config = {
        "learners": {"num_learners": 4, "num_steps": 20, "batch_size": 64, "learning_rate": 0.02},
        "validation": {"fraction": 0.1, "min_per_class": 4},
        "initialization": {"epochs": 1, "batch_size": 32, "learning_rate": 0.02},
    }
    client, run = serve(cluster, data, model, config, *ALLOWED)
    with client:
        assert run.soup is not None
        # The best that is known of is 0.5.
        assert run.soup.soup_accuracy > 0.25
        for strategy in STRATEGIES:
            subset = client.subset(run.run_id, strategy, budget=60)
            assert 0 < len(subset) <= 60, strategy
            assert subset.fingerprint == opened.fingerprint
        chosen = client.subset(run.run_id, "auto", budget=60)
        strata = opened.labels_N[chosen.indices.tolist()].bincount().tolist()
        assert strata == [6] * 10
        with pytest.raises(InvalidRequestError, match="'margin' works with single-label data"):
            client.subset(run.run_id, "margin", budget=60)
        chosen.save(cluster.directory / "subset.npy")
    recipe = ("--steps", "100", "--set", "batch_size=32", "--set", "learning_rate=0.02")
    given = ("--subset", str(cluster.directory / "subset.npy"), *recipe, *ALLOWED)
    assert train(cluster, data, f"{MODULE}:people_held_out", model, *given) > 0.2


SWAPS = ((7, 23), (11, 40), (2, 58))
WRONG = sorted(row for swap in SWAPS for row in swap)
PAIRS_RUN = {
    "learners": {"num_learners": 2, "num_steps": 2, "batch_size": 5, "num_minibatches": 2},
    "soup": {"num_alphas": 2},
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Processes that are started keep their rows there as well.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "pairs", swapped(60, SWAPS))
    return f"pairs:{folder}?{TOWERS}&size=24&clusters=5"


def test_a_coordinator_and_one_call_keep_the_same_pairs(cluster: Cluster, source: str) -> None:
    cluster.start_coordinator("--data", source, "--model", "linear")
    cluster.start_worker("one")
    with cluster.client() as client:
        client.wait(client.start_run(PAIRS_RUN).run_id)
        filtered = client.subset(strategy="clip_score", budget=54)
        covering = client.subset(strategy="clipcov", budget=20)
    assert sorted(set(range(60)) - set(filtered.indices.tolist())) == WRONG
    pairs = open_pairs(source)
    assert all(pairs[row][1] == caption_of(row) for row in filtered.indices.tolist())
    # A third of them, with equal shares of the five colours: none is wrong.
    assert set(covering.indices.tolist()).isdisjoint(WRONG)
    assert Counter(row % 5 for row in covering.indices.tolist()) == dict.fromkeys(range(5), 4)

    with Session(source) as session:
        session.pretrain(PAIRS_RUN)
        for subset in (filtered, covering):
            again = session.client.subset(strategy=subset.strategy, budget=len(subset))
            assert again.indices.tolist() == subset.indices.tolist()
            assert again.fingerprint == subset.fingerprint
