import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import lipt
from lipt.common.data import open_dataset
from lipt.common.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec, InputSpec
from lipt.pretraining import default_model
from lipt.trainer.subsets.subset import Subset
from tests.golden import datasets
from tests.lipt.digits import QUICK, few_digits
from tests.session import Session

STRATEGIES = ("auto", "el2n", "craig", "aum", "milo")
KINDS: dict[str, Callable[[Path], Any]] = {
    "images": lambda _: few_digits(),
    "table": datasets.table,
    "texts": datasets.texts,
}


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(images))
        return logits


@pytest.mark.parametrize("kind", KINDS)
def test_it_chooses_what_the_service_chooses(kind: str, tmp_path: Path) -> None:
    data = open_dataset(given) if isinstance(given := KINDS[kind](tmp_path), str) else given
    run = {**QUICK, "learners": {**QUICK["learners"], "num_steps": 2, "num_snapshots": 2}}
    pretrained = lipt.pretrain(data, seed=3, run=run, progress=False)
    with Session(data) as session:
        ready = session.pretrain(run, seed=3)
        theta_p = safetensors.torch.load(session.client.weights(ready.run_id))
        assert theta_p.keys() == pretrained.theta_p.keys()
        assert all(torch.equal(value, pretrained.theta_p[name]) for name, value in theta_p.items())
        for strategy in STRATEGIES:
            expected = session.client.subset(ready.run_id, strategy, fraction=0.1)
            subset = pretrained.select(strategy, 0.1)
            assert (strategy, subset.digest) == (strategy, expected.digest)
            assert subset.fingerprint == expected.fingerprint
            _require_alike(subset, expected)
        # A tenth by `auto`, where nothing is said.
        default = session.client.subset(ready.run_id)
        assert pretrained.select().digest == default.digest == pretrained.select("auto", 0.1).digest
        expected = session.client.subset(ready.run_id, "milo", fraction=0.1, soft_labels=True)
        subset = pretrained.select("milo", 0.1, soft_labels=True)
        assert subset.soft_labels is not None
        assert subset.soft_labels.shape == (len(subset), len(pretrained.data.class_names))
        assert subset.digest == expected.digest
        _require_alike(subset, expected)
        expected_findings = session.client.diagnose().findings
    findings = lipt.diagnose(data, progress=False).findings
    assert findings.label_errors == expected_findings.label_errors


def _require_alike(subset: Subset, expected: Subset) -> None:
    """The manifest says the same, but for the run and what took how long."""
    ours, theirs = dict(subset.manifest), dict(expected.manifest)
    for name in ("run_id", "run_name", "weights_sha256", "features_sha256"):
        theirs.pop(name)
    for one in (ours, theirs):
        one.pop("costs")
        one["proxy"] = {**one["proxy"], "seconds": 0}
        one["run_config"] = {**one["run_config"], "model": ""}
        one["data"] = {**one["data"], "source": ""}
    assert ours == theirs


def test_the_learners_and_the_soup_are_there_to_look_at() -> None:
    pretrained = lipt.pretrain(few_digits(), "resnet8", run=QUICK, progress=False)
    assert len(pretrained.learners) == 2
    assert pretrained.soup.keys() == {0, 1}
    (best,) = (index for index, part in pretrained.soup.items() if part.position == 0)
    pruned = pretrained.learners[best]["conv1.weight"]
    assert 0 < int((pruned == 0).sum()) < pruned.numel()
    assert pretrained.theta_star.keys() == pretrained.theta_p.keys()


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("uniform", {}),
        ("kcenter", {"labels": "none"}),
        ("kcenter", {"proxy": "ridge:patches"}),
        ("kcenter", {"features": np.zeros((240, 4)), "options": {"space": "features"}}),
        ("uniform", {"proxy": "ridge:patches", "soft_labels": True}),
    ],
)
def test_what_needs_no_learners_trains_none(strategy: str, asked: dict[str, Any]) -> None:
    pretrained = lipt.Pretrained(few_digits(), "resnet8", run=QUICK, progress=False)
    assert len(pretrained.select(strategy, 0.1, **asked)) == 24
    assert pretrained.seconds == {}


def test_a_module_is_where_learners_begin_and_stays_as_it_is() -> None:
    torch.manual_seed(0)
    module = Tiny()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = {**QUICK, "initialization": {"steps": 0}}
    pretrained = lipt.pretrain(few_digits(), module, run=run, progress=False)
    for now in (pretrained.theta_star, module.state_dict()):
        assert all(torch.equal(now[name], value) for name, value in before.items())


def test_a_function_makes_the_model_and_two_do_not_meet() -> None:
    made: list[int] = []

    def make(num_classes: int) -> nn.Module:
        made.append(num_classes)
        return Tiny()

    first = lipt.Pretrained(few_digits(), make, run=QUICK, progress=False)
    second = lipt.Pretrained(few_digits(), Tiny(), run=QUICK, progress=False)
    assert first.model != second.model
    assert len(first.select("el2n", budget=7)) == len(second.select("el2n", budget=7)) == 7
    assert set(made) == {10}


def test_nothing_listens_is_written_or_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    threads, before = _threads(), _this_process()
    subset = lipt.select(few_digits(), "resnet8", strategy="craig", run=QUICK, progress=False)
    assert len(subset) == 24
    assert _this_process() == before
    assert _threads() <= threads  # An earlier test's may end meanwhile.
    assert list(tmp_path.iterdir()) == []


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "Dummy" not in thread.name}


def _this_process() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        list(sys.path),
        signal.getsignal(signal.SIGINT),
        dict(os.environ),
    )


@pytest.mark.slow
def test_ctrl_c_is_heard_while_learners_are_trained() -> None:
    script = (
        "import lipt; from tests.lipt.digits import few_digits\n"
        "lipt.pretrain(few_digits(), 'resnet8', progress=True,\n"
        "    run={'learners': {'num_learners': 2, 'num_steps': 100000, 'batch_size': 16}})"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr is not None
        assert any("training learner" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()
    assert process.returncode != 0


WORDS = Column("", ColumnType.INT64, (20,), num_values=1000)
NUMBERS = Column("numbers", ColumnType.FLOAT32, (30,), standardized=True)
CATEGORIES = Column("categories", ColumnType.INT64, (4,), num_values=100)


@pytest.mark.parametrize(
    ("inputs", "model"),
    [
        (ImageSpec(1, 8, 8), "resnet8"),
        (ImageSpec(3, 64, 64), "resnet8"),
        (ImageSpec(3, 65, 64), "torchvision:resnet18"),
        (ColumnsSpec((NUMBERS, CATEGORIES)), "mlp"),
        (ColumnsSpec((WORDS,)), "text:tiny"),
        # Whole numbers of which nothing is known are no words.
        (ColumnsSpec((Column("", ColumnType.INT64, (20,)),)), "mlp"),
    ],
)
def test_the_model_suits_the_kind_of_data(inputs: InputSpec, model: str) -> None:
    assert default_model(inputs) == model
