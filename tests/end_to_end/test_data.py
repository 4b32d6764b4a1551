import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lipt import Client
from lipt.common.errors import InvalidRequestError
from lipt.data.loading import open_dataset
from lipt.data.sources.pairs import open_pairs
from lipt.trainer.views import RunView
from tests.cluster import SMALL_RUN, Cluster
from tests.coloured_shapes import TOWERS, caption_of, swapped, write_folder
from tests.end_to_end.patient_coordinator import PATIENT
from tests.other_digits import LABELS_N, write_digits
from tests.session import Session


def serve(
    cluster: Cluster, data: str, model: str, config: dict[str, Any], *allowed: str
) -> tuple[Client, RunView]:
    cluster.start_coordinator("--data", data, "--model", model, *allowed)
    for name in ("one", "two"):
        cluster.start_worker(name, *allowed)
    client = cluster.client()
    return client, client.wait(client.start_run(config).run_id)


def train(cluster: Cluster, data: str, test: str, model: str, *flags: str) -> float:
    given = ("--data", data, "--test", test, "--model", model)
    done = cluster.lipt("train", *given, "--json", *flags)
    assert done.returncode == 0, done.stderr
    accuracy: float = json.loads(done.stdout)["test_accuracy"]
    return accuracy


READER_ALLOWED = ("--allow-module", "tests.sentences")
READER_RUN: dict[str, Any] = {
    "model": "tests.sentences:reader",
    "validation": {"fraction": 0.1},
    "learners": {
        "num_learners": 2,
        "num_steps": 8,
        "num_minibatches": 1,
        "batch_size": 128,
        "num_snapshots": 2,
    },
    "soup": {"batch_norm_examples": 64},
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
        "learners": {
            "num_learners": 4,
            "num_steps": 20,
            "num_minibatches": 1,
            "batch_size": 64,
            "learning_rate": 0.02,
        },
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
PAIRS_RUN = {"learners": {"num_learners": 2, "num_steps": 2, "batch_size": 5, "num_minibatches": 2}}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Processes that are started keep their rows there as well.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "pairs", swapped(60, SWAPS))
    return f"pairs:{folder}?{TOWERS}&size=24&clusters=5"


def test_the_service_and_select_keep_the_same_pairs(cluster: Cluster, source: str) -> None:
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


def choices(cluster: Cluster, features: NDArray[np.float32]) -> list[NDArray[Any]]:
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


def test_broken_images_do_not_change_the_subset(cluster: Cluster, tmp_path: Path) -> None:
    folder, removed = tmp_path / "all", tmp_path / "removed"
    paths = write_digits(folder, dict(enumerate(LABELS_N[:NUM_IMAGES].tolist())), scale=4)
    shutil.copytree(folder, removed)
    for row, content in zip(BROKEN, (b"", paths[57].read_bytes()[:60], b"no image"), strict=True):
        (removed / paths[row].relative_to(folder)).unlink()
        paths[row].write_bytes(content)
    ids = np.delete(np.arange(NUM_IMAGES), BROKEN)

    source = f"imagefolder:{folder}"
    flags = ("--data", source, "--max-corrupt", "3", *cluster.config(CONFIG))
    coordinator = cluster.start_coordinator(*flags, program=PATIENT)
    coordinator.wait_for("3 of 400 images cannot be used and are left out: 0, 57, 399")
    cluster.start_worker("sees", "--worker-data", source)
    found = choices(cluster, FEATURES)
    assert int(coordinator.wait_for(r"of 7 ranges, (\d+) by workers of 1 ")[1]) > 0
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
    written = ("--out", str(tmp_path / "shards"))
    export = ("-m", "lipt.cli", "subset", "export", file, "--data", source, *written)
    cluster.start("export", export).wait_for("40 examples")

    (tmp_path / "other").mkdir()
    with Cluster(tmp_path / "other") as other:
        other.start_coordinator("--data", f"imagefolder:{removed}", *other.config(CONFIG))
        other.start_worker("one")
        expected = choices(other, FEATURES[ids])
    assert [len(rows) for rows in expected[:-1]] == [40, 40, 79, 30]
    for rows, places in zip(found, expected, strict=True):
        assert rows.tolist() == ids[places].tolist()
