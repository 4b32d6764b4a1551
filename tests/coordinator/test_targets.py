"""Subsets for a target at a coordinator: the library's bits, stored answers, and refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lipt
from lipt.common.config.run_config import merge
from lipt.common.errors import DataError, InvalidRequestError, UnknownBlobError
from lipt.common.requests import Budget, SubsetRequest, request_to_proto
from lipt.common.tensor_files import pack
from lipt.trainer.client.answers import fetch_subset
from lipt.trainer.views import RunView
from tests.lipt.test_target_selection import OPTIONS, words, written
from tests.session import Session

QUICK = {"initialization": {"steps": 30, "batch_size": 16}, "learners": {"batch_size": 16}}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    pairs = [(word, word.upper()) for word in words(60, 1)]
    pairs += [(word, str(len(set(word)))) for word in words(60, 4)]
    return written(tmp_path_factory.mktemp("pool"), "pool", pairs)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("targets")
    return {
        "upper": written(folder, "upper", [(word, word.upper()) for word in words(20, 9)]),
        "count": written(folder, "count", [(word, str(len(set(word)))) for word in words(20, 8)]),
    }


@pytest.fixture(scope="module")
def session(pool: str) -> Iterator[Session]:
    with Session(pool, "text:causal") as found:
        yield found


@pytest.fixture(scope="module")
def run(session: Session) -> RunView:
    return session.pretrain(merge(session.client.settings_for("target"), QUICK))


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        ("auto", ["upper"]),
        ("loss_drop", ["upper", "count"]),
        ("rds_plus", ["upper"]),
        ("bm25", ["count"]),
        ("perplexity", []),
        ("ifd", []),
    ],
)
def test_a_run_answers_with_the_librarys_bits(
    session: Session,
    run: RunView,
    pool: str,
    targets: dict[str, str],
    strategy: str,
    parts: list[str],
) -> None:
    asked: dict[str, Any] = {"strategy": strategy, "fraction": 0.25}
    if parts:
        asked["target_data"] = {name: targets[name] for name in parts}
    found = session.client.subset(run.run_id, **asked)
    here = lipt.select(pool, run=QUICK, device="cpu", progress=False, **asked)
    assert np.array_equal(found.indices, here.indices)
    assert found.digest == here.digest
    assert found.fingerprint == here.fingerprint
    assert found.strategy == here.strategy == ("loss_drop" if strategy == "auto" else strategy)
    assert found.manifest["target"] == here.manifest["target"]
    assert found.findings == here.findings
    # The answer is stored.
    assert session.client.subset(run.run_id, **asked) == found


def test_a_target_of_another_form_is_refused_before_it_is_sent(
    session: Session, run: RunView, tmp_path: Path
) -> None:
    (tmp_path / "table.csv").write_text("a,y\n1,x\n2,z\n")
    with pytest.raises(DataError):
        session.client.subset(run.run_id, target_data=f"csv:{tmp_path}/table.csv?label=y")
    longer = written(tmp_path, "longer", [("abcd", "ABCD")]).replace(OPTIONS, f"{OPTIONS}0")
    with pytest.raises(DataError):
        session.client.subset(run.run_id, target_data=longer)


def test_a_hostile_target_is_refused(session: Session, run: RunView) -> None:
    for content in (b"{}", pack({"x": torch.zeros(3)})):
        blob = session.client._store(content)
        request = SubsetRequest(budget=Budget(0.1), run=run.run_id, targets=(blob,))
        message = request_to_proto(request)
        with pytest.raises(DataError, match="the target's file"):
            fetch_subset(session.client._connection, message, None)
    message.targets[0].sha256 = "0" * 64
    with pytest.raises(UnknownBlobError):
        fetch_subset(session.client._connection, message, None)
    message.targets.extend([message.targets[0]] * 20)
    with pytest.raises(InvalidRequestError, match="targets"):
        fetch_subset(session.client._connection, message, None)


def test_a_diagnosis_of_completions_has_the_librarys_bits(
    session: Session, run: RunView, pool: str
) -> None:
    settings = merge(session.client.settings_for("target"), QUICK)
    here = lipt.Pretrained(pool, run=settings, device="cpu", progress=False).diagnose()
    found = session.client.diagnose(run.run_id)
    assert np.array_equal(found.label_quality, here.label_quality)
    assert repr(found) == repr(here)


@pytest.mark.slow
def test_a_run_with_another_scale_of_adapters_looks_at_its_own_learner(
    session: Session, targets: dict[str, str]
) -> None:
    pytest.importorskip("peft", reason="the extra lm is not installed")
    asked: Any = {"target_data": targets["upper"], "fraction": 0.25, "options": {"spread": 1}}
    chosen = []
    for alpha in (1.0, 1000.0):
        settings = merge(session.client.settings_for("target"), QUICK)
        run = session.pretrain(merge(settings, {"adapters": {"rank": 2, "alpha": alpha}}))
        chosen.append((run.initial_weights, session.client.subset(run.run_id, **asked)))
    (first, of_first), (second, of_second) = chosen
    # The same weights, which mean another model.
    assert first == second
    assert of_first.digest != of_second.digest
