"""A coordinator's mixtures: the library's bits, stored answers, and refusals."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lipt
from lipt.common.config.run_config import PRESETS, merge
from lipt.common.errors import ConfigError, CorruptBlobError, DataError, InvalidRequestError
from lipt.common.tensor_files import pack
from lipt.trainer.client.answers import fetch_mixture
from lipt.trainer.views import RunView
from lipt.v1 import mixture_pb2
from tests.causal_folders import write_model
from tests.lipt.test_mixture import QUICK
from tests.session import Session

BY_SOURCE = merge(PRESETS["mixture"], QUICK)


def table(path: Path, parts: list[tuple[str, int, float]], seed: int) -> str:
    """Rows of classes by the sign of the first number, turned around in some sources."""
    draws, lines = np.random.default_rng(seed), []
    for site, number, sign in parts:
        for values in draws.normal(size=(number, 4)):
            label = "yes" if sign * values[0] > 0 else "no"
            lines.append(",".join([*(f"{value:.3f}" for value in values), site, label]))
    draws.shuffle(lines)
    path.write_text("\n".join(["a,b,c,d,site,y", *lines]) + "\n")
    return f"csv:{path}?label=y"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixture")


@pytest.fixture(scope="module")
def pool(folder: Path) -> str:
    parts = [("right", 200, 1.0), ("turned", 150, -1.0), ("small", 60, 1.0)]
    return table(folder / "pool.csv", parts, seed=0) + "&source=site"


@pytest.fixture(scope="module")
def session(pool: str) -> Iterator[Session]:
    with Session(pool, "linear") as found:
        yield found


@pytest.fixture(scope="module")
def run(session: Session) -> RunView:
    return session.pretrain(BY_SOURCE)


def test_one_run_answers_for_targets_with_the_librarys_bits(
    session: Session, run: RunView, pool: str, folder: Path
) -> None:
    assert run.sources == ("right", "small", "turned")
    assert len(run.learners) == run.config.learners.num_learners == 6
    for sign, suits in ((1.0, "turned"), (-1.0, "right")):
        target = table(folder / "target.csv", [("x", 60, sign)], seed=int(5 + sign))
        found = session.client.mixture(run.run_id, target)
        here = lipt.mix(pool, target, "linear", run=QUICK, device="cpu", progress=False)
        assert found.weights[suits] < 0.05
        for name in ("weights", "intervals", "outcomes", "verdict", "findings", "rows"):
            assert getattr(found, name) == getattr(here, name)
        assert found.fingerprint == here.fingerprint == run.fingerprint
        assert found.manifest["run_id"] == run.run_id


def test_the_shares_divide_a_subset_of_the_run(
    session: Session, run: RunView, folder: Path
) -> None:
    target = table(folder / "other.csv", [("x", 40, 1.0)], seed=9)
    mixture = session.client.mixture(run.run_id, target)
    subset = session.client.subset(run.run_id, "uniform", budget=40, mixture=mixture)
    by_source = subset.recorded("findings", "by_source")
    assert sum(by_source.values()) == 40
    assert by_source["turned"] <= 1
    assert len(mixture.sample(30)) == 30


def test_an_equal_request_is_answered_from_the_store(
    session: Session, run: RunView, folder: Path
) -> None:
    target = table(folder / "again.csv", [("x", 40, 1.0)], seed=4)
    first, again = (session.client.mixture(run.run_id, target) for _ in range(2))
    assert again == first
    assert again.manifest["costs"] == first.manifest["costs"]


def test_a_lost_answer_is_fitted_again_and_lost_learners_are_named(
    pool: str, folder: Path, tmp_path: Path
) -> None:
    target = table(folder / "lost.csv", [("x", 40, 1.0)], seed=7)
    with Session(pool, "linear", state_dir=tmp_path) as session:
        run = session.pretrain(BY_SOURCE)
        first = session.client.mixture(run.run_id, target)
        files = [file for file in (tmp_path / "blobs").rglob("*") if file.is_file()]
        (answer,) = (file for file in files if b"lipt-mixture-1" in file.read_bytes())
        answer.unlink()
        again = session.client.mixture(run.run_id, target)
        assert (again.weights, again.outcomes) == (first.weights, first.outcomes)
        for file in files:
            file.unlink(missing_ok=True)
        with pytest.raises(CorruptBlobError, match=r"6 of the 6 results of .* learners are lost"):
            session.client.mixture(run.run_id, table(folder / "lost.csv", [("x", 41, 1.0)], seed=8))


def test_runs_with_random_shards_tell_no_sources_apart(session: Session, folder: Path) -> None:
    random = session.pretrain({"learners": {"num_minibatches": 1, "batch_size": 16}})
    target = table(folder / "target.csv", [("x", 40, 1.0)], seed=3)
    with pytest.raises(InvalidRequestError, match="lipt run start --shards source"):
        session.client.mixture(random.run_id, target)


def test_targets_of_another_form_are_refused(session: Session, run: RunView, folder: Path) -> None:
    for wrong in (
        (torch.rand(20, 3), torch.arange(20) % 2),
        (torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8) % 2),
    ):
        with pytest.raises(DataError, match=r"of the same form|the same inputs"):
            session.client.mixture(run.run_id, wrong)
    other = table(folder / "classes.csv", [("x", 40, 1.0)], seed=3)
    (folder / "classes.csv").write_text(
        (folder / "classes.csv").read_text().replace(",yes\n", ",maybe\n")
    )
    with pytest.raises(DataError, match="maybe"):
        session.client.mixture(run.run_id, other)


def test_a_file_that_holds_no_examples_is_refused(session: Session, run: RunView) -> None:
    words = {
        pack({"labels": torch.zeros(2, dtype=torch.int64)}): "no description of its examples",
        b"{}": "the target's file cannot be read.*Give labelled examples to lipt mixture get",
    }
    for content, said in words.items():
        file = session.client._store(content)
        request = mixture_pb2.GetMixtureRequest(run_id=run.run_id)
        request.target.sha256, request.target.size_bytes = file.sha256, file.size_bytes
        with pytest.raises(DataError, match=said):
            fetch_mixture(session.client._connection, request, None)


def test_a_data_set_without_sources_has_no_run_by_source() -> None:
    data = (torch.rand(100, 3), torch.arange(100) % 2)
    with Session(data, "linear") as plain, pytest.raises(ConfigError, match="names no sources"):
        plain.client.start_run(BY_SOURCE)


def test_images_of_a_folder_for_each_source_are_mixed(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for source, shift in (("pool/day", 0), ("pool/night", 120), ("target", 120)):
        for name, bright in (("dark", 20), ("light", 90)):
            (tmp_path / source / name).mkdir(parents=True)
            for place in range(24):
                pixels = draws.integers(0, 30, (8, 8, 3)) + bright + shift
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                image.save(tmp_path / source / name / f"{place}.png")
    pool = f"imagefolder:{tmp_path}/pool?source=folder"
    target = f"imagefolder:{tmp_path}/target"
    quick: dict[str, Any] = merge(QUICK, {"learners": {"num_minibatches": 2}})
    here = lipt.mix(pool, target, "resnet8", run=quick, device="cpu", progress=False)
    with Session(pool, "resnet8", device="cpu") as session:
        run = session.pretrain(merge(PRESETS["mixture"], quick))
        found = session.client.mixture(run.run_id, target)
    assert json.dumps(dict(found.weights)) == json.dumps(dict(here.weights))
    assert found.outcomes == here.outcomes


@pytest.mark.parametrize("kind", ["text:causal", "a folder", "adapters"])
def test_texts_of_a_causal_model_are_mixed(tmp_path: Path, kind: str) -> None:
    in_folder = kind != "text:causal"
    model = write_model(tmp_path / "model") if in_folder else kind
    own = f"&tokenizer={tmp_path}/model/tokenizer.json" * in_folder
    draws = np.random.default_rng(0)

    def file(name: str, rules: dict[str, Any], number: int) -> str:
        lines = []
        for source, rule in rules.items():
            for _ in range(number):
                word = "".join(draws.choice(list("abcd"), 3))
                lines.append(json.dumps({"ask": word, "say": rule(word), "from": source}))
        (tmp_path / name).write_text("\n".join(lines))
        return f"jsonl:{tmp_path}/{name}?prompt=ask&completion=say&max_length=8{own}"

    rules = {"upper": str.upper, "same": str}
    pool = file("pool.jsonl", rules, 60) + "&source=from"
    target = file("target.jsonl", {"upper": str.upper}, 30)
    quick: dict[str, Any] = {
        "initialization": {"steps": 10, "batch_size": 16},
        "learners": {"num_minibatches": 3, "batch_size": 16},
    }
    if in_folder:
        # theta* is the folder's own.
        del quick["initialization"]["steps"]
    if kind == "adapters":
        pytest.importorskip("peft")
        quick["adapters"] = {"rank": 2}
    here = lipt.mix(pool, target, model, run=quick, device="cpu", progress=False)
    with Session(pool, model, device="cpu") as session:
        run = session.pretrain(merge(session.client.settings_for("mixture"), quick))
        found = session.client.mixture(run.run_id, target)
        sent = {learner.result.size_bytes for learner in run.learners if learner.result}
        if kind == "adapters":
            saved = session.client.save_adapter(tmp_path / "adapter", run.run_id)
            assert (saved / "adapter_config.json").is_file()
            assert max(sent) < 20_000
        else:
            assert min(sent) > 20_000
        classes = table(tmp_path / "classes.csv", [("x", 20, 1.0)], seed=1)
        with pytest.raises(DataError):
            session.client.mixture(run.run_id, classes)
    assert run.config.initialization.steps == (0 if in_folder else 10)
    assert run.config.learners.num_minibatches == 3
    assert run.config.learners.learning_rate == PRESETS["mixture-text"]["learners"]["learning_rate"]
    assert found.weights == here.weights
    assert found.outcomes == here.outcomes
